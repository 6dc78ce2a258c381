package probe

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/fault"
)

// retries is how often a check is tried that could not be made at all, before it is given up until the next period.
const retries = 3

// worker runs one probe of one container. Its fields from state on belong to its goroutine.
type worker struct {
	m       *Manager
	target  Target
	kind    Kind
	spec    *v1.Probe
	started chan struct{} // closed once the startup probe has succeeded
	cancel  context.CancelFunc
	done    chan struct{}

	counts [3]atomic.Uint64 // checks by result: success, failure, none

	state  Result // what Results was told last
	last   Result // outcome of the last check
	streak int32  // how many checks in a row had that outcome
}

// run checks every period until ctx ends or the result is final.
func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	defer w.cancel()
	if w.kind != Startup {
		select {
		case <-ctx.Done():
			return
		case <-w.started:
		}
	}
	period := time.Duration(w.spec.PeriodSeconds) * time.Second
	next := time.Now().Add(w.firstDelay(period))
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		next = time.Now().Add(period)
		var final bool
		_ = fault.Do("node/probe", func() { final = w.once(ctx) }) // the next period tries again
		if final || ctx.Err() != nil {
			return
		}
		timer.Reset(time.Until(next))
	}
}

// firstDelay is how long to wait for the first check: the rest of initialDelaySeconds, and for a container that has
// run for a while, as after a restart of the agent, a random part of a period, so that not all check at once.
func (w *worker) firstDelay(period time.Duration) time.Duration {
	age := time.Since(w.target.StartedAt)
	if rest := time.Duration(w.spec.InitialDelaySeconds)*time.Second - age; rest > 0 {
		return rest
	}
	if w.target.Started && age > period {
		return rand.N(period)
	}
	return 0
}

// once makes one check and counts it; it returns true when no further check is wanted.
func (w *worker) once(ctx context.Context) (final bool) {
	out := w.check(ctx)
	if ctx.Err() != nil {
		return true
	}
	w.report(out)
	w.count(out)
	if out.err != nil {
		return false // not an answer
	}
	result, message := out.result, out.output
	if result != w.last {
		w.last, w.streak = result, 0
	}
	w.streak++
	if (result == Failure && w.streak < w.spec.FailureThreshold) || (result == Success && w.streak < w.spec.SuccessThreshold) {
		return false
	}
	changed := result != w.state
	w.state = result
	if w.kind == Startup && result == Success {
		defer close(w.started)
	}
	if (changed || result == Failure) && w.m.cfg.Results != nil {
		w.m.cfg.Results(w.target.Pod.UID, w.target.Container.Name, w.kind, result, message)
	}
	return w.kind == Startup || (w.kind == Liveness && result == Failure)
}

// outcome is what one check found.
type outcome struct {
	result  Result
	warning bool   // a success that users should know about
	output  string // at most maxOutput bytes
	err     error  // the check could not be made; result does not count
}

func failed(format string, args ...any) outcome {
	return outcome{result: Failure, output: clip(fmt.Sprintf(format, args...))}
}

func (w *worker) check(ctx context.Context) outcome {
	var out outcome
	for range retries {
		if err := fault.Do("node/probe", func() {
			fault.Point("node/probe")
			out = w.checkOnce(ctx)
		}); err != nil {
			return outcome{err: err}
		}
		if out.err == nil || ctx.Err() != nil {
			break
		}
	}
	return out
}

func (w *worker) checkOnce(ctx context.Context) outcome {
	timeout := time.Duration(w.spec.TimeoutSeconds) * time.Second
	host := w.target.PodIP
	switch {
	case w.spec.Exec != nil:
		return w.execCheck(ctx, w.spec.Exec.Command, timeout)
	case w.spec.HTTPGet != nil:
		return httpCheck(ctx, w.spec.HTTPGet, w.target.Container, host, timeout)
	case w.spec.TCPSocket != nil:
		port, err := resolvePort(w.spec.TCPSocket.Port, w.target.Container)
		if err != nil {
			return outcome{err: err}
		}
		if w.spec.TCPSocket.Host != "" {
			host = w.spec.TCPSocket.Host
		}
		return tcpCheck(ctx, host, port, timeout)
	case w.spec.GRPC != nil:
		service := ""
		if w.spec.GRPC.Service != nil {
			service = *w.spec.GRPC.Service
		}
		return grpcCheck(ctx, hostPort(host, int(w.spec.GRPC.Port)), service, timeout)
	}
	return outcome{err: fmt.Errorf("missing probe handler for %s/%s:%s", w.target.Pod.Namespace, w.target.Pod.Name, w.target.Container.Name)}
}

// report records the event that users read for a check that did not simply succeed.
func (w *worker) report(out outcome) {
	switch {
	case out.err != nil:
		w.event("Unhealthy", fmt.Sprintf("%s probe errored and resulted in %s state: %s", w.kind, Unknown, out.err))
	case out.result == Failure:
		w.event("Unhealthy", fmt.Sprintf("%s probe failed: %s", w.kind, out.output))
	case out.warning:
		w.event("ProbeWarning", fmt.Sprintf("%s probe warning: %s", w.kind, out.output))
	}
}

func (w *worker) event(reason, message string) {
	w.m.log.Debug(message, "pod", w.target.Pod.Namespace+"/"+w.target.Pod.Name, "container", w.target.Container.Name)
	if w.m.cfg.Events != nil {
		w.m.cfg.Events.Event(containerRef(w.target.Pod, w.target.Container), v1.EventTypeWarning, reason, message)
	}
}

// containerRef refers to a container of the pod, as events do.
func containerRef(pod *v1.Pod, c *v1.Container) *v1.ObjectReference {
	field := "spec.containers{" + c.Name + "}"
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == c.Name {
			field = "spec.initContainers{" + c.Name + "}"
		}
	}
	return &v1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion, FieldPath: field,
	}
}
