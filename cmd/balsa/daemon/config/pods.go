package config

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/balsahq/balsa/node/admission"
)

// Pods configures what pods of this machine may do. The names are the kubelet's.
type Pods struct {
	AllowedUnsafeSysctls []string
	SeccompDefault       bool
	MaxPIDs              int64 // -1: no limit
	ManifestDir          string
}

// defaultPods is stricter than the kubelet's defaults: pods may not make the kernel's rarely used system calls, and one pod
// cannot use up the process IDs of the machine. Few programs have more than a thousand threads, and 110 pods with 16,384
// processes each fit into the 4,194,304 process IDs of a 64-bit kernel.
func defaultPods() Pods { return Pods{SeccompDefault: true, MaxPIDs: 16384} }

func (p *Pods) validate() []error {
	var faults []error
	if _, err := admission.NewSysctls(nil, p.AllowedUnsafeSysctls); err != nil {
		faults = append(faults, fmt.Errorf("--allowed-unsafe-sysctls: %w", err))
	}
	if p.MaxPIDs == 0 || p.MaxPIDs < -1 {
		faults = append(faults, fmt.Errorf("--pod-max-pids %d: give 1 or more, or -1 for no limit", p.MaxPIDs))
	}
	if d := p.ManifestDir; d != "" {
		if st, err := os.Stat(d); !filepath.IsAbs(d) || err != nil || !st.IsDir() {
			faults = append(faults, fmt.Errorf("--pod-manifest-path %q: give the absolute path of a directory that exists", d))
		}
	}
	return faults
}

// PIDLimit returns the limit in the form of node.Config: 0 is no limit.
func (p *Pods) PIDLimit() int64 { return max(p.MaxPIDs, 0) }
