package podloop

import (
	"time"

	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// startContainer brings one container to life: its image, then itself.
func startContainer(pod *v1.Pod, o *Observed, c *v1.Container, d *Decision) {
	if o.IsBusy(StartContainer, c.Name) {
		d.waitFor(c.Name, creatingReason(pod), "")
		return
	}
	if !ensureImage(o, c, d) {
		if _, said := d.Waiting[c.Name]; !said {
			d.waitFor(c.Name, creatingReason(pod), "")
		}
		return
	}
	if r := o.StartRetry[c.Name]; r != nil && o.Now.Before(r.NotBefore) {
		d.wakeAt(r.NotBefore)
		d.waitFor(c.Name, r.Reason, r.Message)
		return
	}
	d.add(Action{Verb: StartContainer, Container: c.Name, Attempt: nextAttempt(pod, o, c)})
	if r := o.StartRetry[c.Name]; r != nil {
		d.waitFor(c.Name, r.Reason, r.Message)
		return
	}
	d.waitFor(c.Name, creatingReason(pod), "")
}

// nextAttempt is the restart count of the next run. Where the runtime has lost
// the runs before, the API still knows how many there were.
func nextAttempt(pod *v1.Pod, o *Observed, c *v1.Container) int {
	if in := o.Latest(c.Name); in != nil {
		if in.State == StateCreated {
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

// pullErrorShown is how long the error of a pull is shown before the wait
// for the next one is.
const pullErrorShown = 2 * time.Second

// ensureImage reports whether the image of c is there for its next start.
func ensureImage(o *Observed, c *v1.Container, d *Decision) bool {
	im := o.Images[c.Name]
	if im.Ref != "" {
		return true
	}
	r := im.Retry
	if r != nil && o.Now.Before(r.NotBefore) {
		d.wakeAt(r.NotBefore)
		turn := r.At.Add(pullErrorShown)
		if r.Reason == "ErrImagePull" && !o.Now.Before(turn) {
			d.waitFor(c.Name, "ImagePullBackOff", "Back-off pulling image \""+c.Image+"\": ErrImagePull: "+r.Message)
			return false
		}
		d.wakeAt(ifLater(turn, o.Now))
		d.waitFor(c.Name, r.Reason, r.Message)
		return false
	}
	if !o.IsBusy(PullImage, c.Name) {
		d.add(Action{Verb: PullImage, Container: c.Name})
	}
	if r != nil {
		d.waitFor(c.Name, r.Reason, r.Message)
	}
	return false
}

// ifLater is t when it lies after now, else zero.
func ifLater(t, now time.Time) time.Time {
	if t.After(now) {
		return t
	}
	return time.Time{}
}

// RetryDue reports whether a retry may run now, else sets the wake-up.
func RetryDue(o *Observed, r *Retry, d *Decision) bool {
	if r == nil || !o.Now.Before(r.NotBefore) {
		return true
	}
	d.wakeAt(r.NotBefore)
	return false
}

// pruneContainers asks for the removal of dead containers beyond the last one of each
// name: the last is what status and "logs --previous" speak of.
func pruneContainers(o *Observed, d *Decision) {
	if o.IsBusy(PruneContainers, "") || !RetryDue(o, o.PruneRetry, d) {
		return
	}
	var ids []string
	for _, ins := range o.Containers {
		for i := 0; i < len(ins)-2; i++ {
			if ins[i].State == StateExited {
				ids = append(ids, ins[i].ID)
			}
		}
	}
	if len(ids) > 0 {
		d.add(Action{Verb: PruneContainers, IDs: ids})
	}
}
