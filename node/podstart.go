package node

import (
	"time"

	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// start brings one container to life: its image, then itself.
func start(pod *v1.Pod, o *observed, c *v1.Container, d *decision) {
	if o.busy(doStart, c.Name) {
		d.wait(c.Name, creating(pod), "")
		return
	}
	if !ensureImage(o, c, d) {
		if _, said := d.Waiting[c.Name]; !said {
			d.wait(c.Name, creating(pod), "")
		}
		return
	}
	if r := o.StartRetry[c.Name]; r != nil && o.Now.Before(r.NotBefore) {
		d.wakeAt(r.NotBefore)
		d.wait(c.Name, r.Reason, r.Message)
		return
	}
	d.do(action{Verb: doStart, Container: c.Name, Attempt: attemptOf(pod, o, c)})
	if r := o.StartRetry[c.Name]; r != nil {
		d.wait(c.Name, r.Reason, r.Message)
		return
	}
	d.wait(c.Name, creating(pod), "")
}

// attemptOf is the restart count of the next run. Where the runtime has lost
// the runs before, the API still knows how many there were.
func attemptOf(pod *v1.Pod, o *observed, c *v1.Container) int {
	if in := o.latest(c.Name); in != nil {
		if in.State == stateCreated {
			return in.Attempt
		}
		return in.Attempt + 1
	}
	for _, sts := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		if st, ok := podutil.GetContainerStatus(sts, c.Name); ok && st.ContainerID != "" {
			return int(st.RestartCount) + 1
		}
	}
	return 0
}

// imageBackoffAfter is how long the error of a pull is shown before the wait
// for the next one is.
const imageBackoffAfter = 2 * time.Second

// ensureImage reports whether the image of c is there for its next start.
func ensureImage(o *observed, c *v1.Container, d *decision) bool {
	im := o.Images[c.Name]
	if im.Ref != "" {
		return true
	}
	r := im.Retry
	if r != nil && o.Now.Before(r.NotBefore) {
		d.wakeAt(r.NotBefore)
		turn := r.At.Add(imageBackoffAfter)
		if r.Reason == "ErrImagePull" && !o.Now.Before(turn) {
			d.wait(c.Name, "ImagePullBackOff", "Back-off pulling image \""+c.Image+"\": ErrImagePull: "+r.Message)
			return false
		}
		d.wakeAt(later(turn, o.Now))
		d.wait(c.Name, r.Reason, r.Message)
		return false
	}
	if !o.busy(doImage, c.Name) {
		d.do(action{Verb: doImage, Container: c.Name})
	}
	if r != nil {
		d.wait(c.Name, r.Reason, r.Message)
	}
	return false
}

// later is t when it lies after now, else zero.
func later(t, now time.Time) time.Time {
	if t.After(now) {
		return t
	}
	return time.Time{}
}

// due reports whether a retry may run now, else sets the wake-up.
func due(o *observed, r *retry, d *decision) bool {
	if r == nil || !o.Now.Before(r.NotBefore) {
		return true
	}
	d.wakeAt(r.NotBefore)
	return false
}

// prune asks for the removal of dead containers beyond the last one of each
// name: the last is what status and "logs --previous" speak of.
func prune(o *observed, d *decision) {
	if o.busy(doPrune, "") || !due(o, o.PruneRetry, d) {
		return
	}
	var ids []string
	for _, ins := range o.Containers {
		for i := 0; i < len(ins)-2; i++ {
			if ins[i].State == stateExited {
				ids = append(ids, ins[i].ID)
			}
		}
	}
	if len(ids) > 0 {
		d.do(action{Verb: doPrune, IDs: ids})
	}
}
