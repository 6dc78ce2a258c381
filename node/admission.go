package node

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/util/kernel"

	"github.com/balsahq/balsa/node/admission"
	"github.com/balsahq/balsa/node/cgroup"
	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/podworker"
	"github.com/balsahq/balsa/node/staticpod"
	"github.com/balsahq/balsa/node/stats"
)

// takesRoom reports whether a pod counts on this node: it runs, or is to run.
func takesRoom(w *podworker.Worker) bool {
	v := w.View()
	return !w.Leaving() && !v.Stopped && !podloop.IsTerminal(v.Pod.Status.Phase)
}

// admissionInput returns what the admission of a pod depends on. It is called with Agent.mu held.
func (a *Agent) admissionInput(pod *v1.Pod) admission.Input {
	in := admission.Input{
		Pod: pod, Node: a.node, Static: staticpod.Is(pod),
		Sysctls: a.sysctls, StrictGroups: a.strictGroups, AppArmor: appArmorEnabled(), AllocatedLater: a.devices.Manages,
		Pressure: a.pressure(), ShuttingDown: a.shuttingDown.Load(),
	}
	for uid, w := range a.workers {
		if uid != pod.UID && takesRoom(w) {
			in.Others = append(in.Others, w.Allocated())
		}
	}
	return in
}

// admit returns why a pod that is new to this node may not run beside the others; nil when it may. It is called with Agent.mu
// held.
func (a *Agent) admit(pod *v1.Pod) *podloop.Failure {
	refused := admission.Check(a.admissionInput(pod))
	if refused == nil {
		return nil
	}
	return &podloop.Failure{Reason: refused.Reason, Message: podworker.RejectedPrefix + refused.Message}
}

// allowedSysctls returns the sysctls that pods may set on this machine's kernel.
func allowedSysctls(unsafe []string) (*admission.Sysctls, error) {
	running, err := kernel.GetVersion()
	if err != nil {
		running = nil // then only the sysctls that are safe with any kernel
	}
	s, err := admission.NewSysctls(running, unsafe)
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	return s, nil
}

// appArmorEnabled reports whether the kernel enforces AppArmor profiles.
func appArmorEnabled() bool {
	return strings.HasPrefix(readLine("/sys/module/apparmor/parameters/enabled"), "Y")
}

// allPodsLimits returns the limits of all pods together, so that the node's own processes keep what is reserved for them. The
// memory limit is above what pods may request by the threshold of eviction, so that a pod is evicted before the kernel kills
// one.
func (a *Agent) allPodsLimits() cgroup.Limits {
	room := a.cfg.podsRoom(a.cfg.capacity())
	l := cgroup.Limits{CPUShares: cgroup.Shares(room.Cpu().MilliValue()), Memory: room.Memory().Value()}
	if q, ok := a.cfg.Reserved["pid"]; ok {
		if most := stats.MaxPIDs(); most > 0 {
			l.PIDs = max(1, most-q.Value())
		}
	}
	return l
}
