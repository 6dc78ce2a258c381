package config

import (
	"fmt"

	"github.com/balsahq/balsa/node/admission"
)

// Pods is what this machine's administrator grants pods, or not; the names are the kubelet's.
type Pods struct {
	AllowedUnsafeSysctls []string
	SeccompDefault       bool
	MaxPIDs              int64 // -1: no limit
}

// defaultPods are stricter than the kubelet's: one pod does not take the kernel's rarely used system calls, nor all
// process ids of the machine. A thousand threads are many for a program, and 110 pods of 16,384 fit into a 64-bit kernel.
func defaultPods() Pods { return Pods{SeccompDefault: true, MaxPIDs: 16384} }

func (p *Pods) validate() []error {
	var faults []error
	if _, err := admission.NewSysctls(nil, p.AllowedUnsafeSysctls); err != nil {
		faults = append(faults, fmt.Errorf("--allowed-unsafe-sysctls: %w", err))
	}
	if p.MaxPIDs == 0 || p.MaxPIDs < -1 {
		faults = append(faults, fmt.Errorf("--pod-max-pids %d: give 1 or more, or -1 for no limit", p.MaxPIDs))
	}
	return faults
}

// PIDLimit is the limit as the agent takes it: 0 for none.
func (p *Pods) PIDLimit() int64 { return max(p.MaxPIDs, 0) }
