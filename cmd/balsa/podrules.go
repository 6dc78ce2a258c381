package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/balsahq/balsa/node/admission"
)

// podRules are what this machine's administrator grants pods, or not; the names are the kubelet's.
type podRules struct {
	AllowedUnsafeSysctls []string
}

func (p *podRules) bind(f *pflag.FlagSet) {
	f.StringSliceVar(&p.AllowedUnsafeSysctls, "allowed-unsafe-sysctls", nil,
		"sysctls that pods of this machine may set besides the safe ones: names, or prefixes that end in * (as kernel.msg*,net.core.somaxconn); a pod that sets another one fails with the reason SysctlForbidden")
}

func (p *podRules) validate() []error {
	if _, err := admission.NewSysctls(nil, p.AllowedUnsafeSysctls); err != nil {
		return []error{fmt.Errorf("--allowed-unsafe-sysctls: %w", err)}
	}
	return nil
}
