package podworker

import (
	"io"
	"os"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/node/containerlogs"
	"github.com/balsahq/balsa/node/criconfig"
	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/probe"
)

// startProbes begins the probes of a container that runs. Results from before a restart of the agent hold until a probe gives
// another.
func (w *Worker) startProbes(c *v1.Container, id string) {
	in := w.observed.ByID(id)
	if in == nil || in.State != podloop.StateRunning || w.observed.Latest(c.Name) != in || !w.observed.StoppingSince.IsZero() {
		return
	}
	if c.LivenessProbe == nil && c.ReadinessProbe == nil && c.StartupProbe == nil {
		return
	}
	ip := ""
	if ips := podloop.PodIPs(w.pod, w.observed, w.host.HostIPs); len(ips) > 0 {
		ip = ips[0]
	}
	w.host.Probes.Start(probe.Target{
		Pod: w.pod, Container: c, ContainerID: id, PodIP: ip, StartedAt: in.Started, Started: w.observed.StartedUp[id],
	})
}

// applyProbeResult records the result of a probe of the newest run of a container.
func (w *Worker) applyProbeResult(name string, kind probe.Kind, r probe.Result) {
	in := w.observed.Latest(name)
	c, _ := podloop.FindContainer(w.pod, name)
	if in == nil || c == nil || in.State != podloop.StateRunning {
		return
	}
	switch kind {
	case probe.Readiness:
		w.observed.Ready[in.ID] = r == probe.Success
	case probe.Startup:
		if r == probe.Success {
			w.observed.StartedUp[in.ID] = true
		} else if r == probe.Failure {
			w.observed.Unhealthy[in.ID] = &podloop.Unhealthy{Kind: "startup", Grace: probeGrace(w.pod, c.StartupProbe)}
		}
	case probe.Liveness:
		if r == probe.Failure {
			w.observed.Unhealthy[in.ID] = &podloop.Unhealthy{Kind: "liveness", Grace: probeGrace(w.pod, c.LivenessProbe)}
		}
	}
}

func probeGrace(pod *v1.Pod, p *v1.Probe) int64 {
	if p != nil && p.TerminationGracePeriodSeconds != nil {
		return *p.TerminationGracePeriodSeconds
	}
	return podloop.GracePeriod(pod, nil)
}

// readTerminationMessage reads the termination message of a container: its file, or the end of its log where the policy asks
// for that. It is appended to what the runtime said.
func (w *Worker) readTerminationMessage(in *podloop.Instance, policy v1.TerminationMessagePolicy) {
	text := ""
	if in.TerminationMessageFile != "" {
		text = readStart(in.TerminationMessageFile, criconfig.MaxTerminationMessage)
	}
	if text == "" && policy == v1.TerminationMessageFallbackToLogsOnError && in.ExitCode != 0 {
		text = containerlogs.Tail(in.LogPath)
	}
	switch {
	case text == "":
	case in.Message == "":
		in.Message = text
	default:
		in.Message += ": " + text
	}
}

func readStart(path string, most int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, most))
	return string(b)
}
