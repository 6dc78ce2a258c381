package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/balsahq/balsa/node/admission"
)

// podRules are what this machine's administrator grants pods, or not; the names are the kubelet's.
type podRules struct {
	AllowedUnsafeSysctls []string
	SeccompDefault       bool
	MaxPIDs              int64 // -1: no limit
}

// defaultPodRules are stricter than the kubelet's: one pod does not take the kernel's rarely used system calls, nor all
// process ids of the machine. A thousand threads are many for a program, and 110 pods of 16,384 fit into a 64-bit kernel.
func defaultPodRules() podRules { return podRules{SeccompDefault: true, MaxPIDs: 16384} }

func (p *podRules) bind(f *pflag.FlagSet) {
	f.StringSliceVar(&p.AllowedUnsafeSysctls, "allowed-unsafe-sysctls", p.AllowedUnsafeSysctls,
		"sysctls that pods of this machine may set besides the safe ones: names, or prefixes that end in * (as kernel.msg*,net.core.somaxconn); a pod that sets another one fails with the reason SysctlForbidden")
	f.BoolVar(&p.SeccompDefault, "seccomp-default", p.SeccompDefault,
		"run containers that name no seccomp profile with the runtime's default one instead of unconfined; containers that run already keep what they have")
	f.Int64Var(&p.MaxPIDs, "pod-max-pids", p.MaxPIDs, "how many processes and threads a pod may have at most; -1 for no limit but the machine's")
}

func (p *podRules) validate() []error {
	var faults []error
	if _, err := admission.NewSysctls(nil, p.AllowedUnsafeSysctls); err != nil {
		faults = append(faults, fmt.Errorf("--allowed-unsafe-sysctls: %w", err))
	}
	if p.MaxPIDs == 0 || p.MaxPIDs < -1 {
		faults = append(faults, fmt.Errorf("--pod-max-pids %d: give 1 or more, or -1 for no limit", p.MaxPIDs))
	}
	return faults
}

// maxPIDs is the limit as the agent takes it: 0 for none.
func (p *podRules) maxPIDs() int64 { return max(p.MaxPIDs, 0) }
