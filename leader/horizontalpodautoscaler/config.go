package horizontalpodautoscaler

import (
	"errors"
	"fmt"
	"time"
)

// Config is what all autoscalers have in common, with the names and defaults of kube-controller-manager's flags.
type Config struct {
	// SyncPeriod is the time between two looks at the metrics of an autoscaler. Default 15 s.
	SyncPeriod time.Duration
	// DownscaleStabilization is the stabilization window for scaling down of autoscalers that name none. Default 5 min.
	DownscaleStabilization time.Duration
	// Tolerance is how far the ratio of a metric to its target may be from 1 without a change, for autoscalers that say
	// nothing. Default 0.1.
	Tolerance float64
	// CPUInitializationPeriod is how long after its start a pod's processor time counts only while the pod is ready, and
	// measured after it became so. Default 5 min.
	CPUInitializationPeriod time.Duration
	// InitialReadinessDelay is how long after its start a pod that becomes unready counts as one that never was ready.
	// Default 30 s.
	InitialReadinessDelay time.Duration
}

// DefaultConfig is upstream's.
func DefaultConfig() Config {
	return Config{
		SyncPeriod: 15 * time.Second, DownscaleStabilization: 5 * time.Minute, Tolerance: 0.1,
		CPUInitializationPeriod: 5 * time.Minute, InitialReadinessDelay: 30 * time.Second,
	}
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	if c.SyncPeriod < time.Second {
		errs = append(errs, fmt.Errorf("--horizontal-pod-autoscaler-sync-period %s: give 1s or more", c.SyncPeriod))
	}
	for name, d := range map[string]time.Duration{
		"downscale-stabilization": c.DownscaleStabilization, "cpu-initialization-period": c.CPUInitializationPeriod, "initial-readiness-delay": c.InitialReadinessDelay,
	} {
		if d < 0 || d > time.Hour {
			errs = append(errs, fmt.Errorf("--horizontal-pod-autoscaler-%s %s: give 0 to 1h", name, d))
		}
	}
	if !(c.Tolerance >= 0 && c.Tolerance < 1) {
		errs = append(errs, fmt.Errorf("--horizontal-pod-autoscaler-tolerance %v: give a number from 0 to less than 1", c.Tolerance))
	}
	return errors.Join(errs...)
}
