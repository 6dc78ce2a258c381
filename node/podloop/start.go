package podloop

import (
	"time"

	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// startContainer adds the action that brings a container nearer to running: pull its image, or start it.
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

// nextAttempt returns the restart count of the next run. When the runtime has lost the earlier runs, the count in the pod's
// status goes on.
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

// pullErrorShown is how long the status says ErrImagePull after a failed pull; until the next pull it says ImagePullBackOff.
const pullErrorShown = 2 * time.Second

// ensureImage reports whether the image for the next start of c is present, and adds the pull otherwise.
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

// ifLater returns t when it is after now, else zero.
func ifLater(t, now time.Time) time.Time {
	if t.After(now) {
		return t
	}
	return time.Time{}
}

// RetryDue reports whether an operation that left r may begin again now; when not, it sets the decision's wake-up.
func RetryDue(o *Observed, r *Retry, d *Decision) bool {
	if r == nil || !o.Now.Before(r.NotBefore) {
		return true
	}
	d.wakeAt(r.NotBefore)
	return false
}

// pruneContainers adds the removal of dead containers. It keeps the newest two runs of each name: the status and
// "kubectl logs --previous" need them.
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
