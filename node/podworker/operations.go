package podworker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"

	"github.com/balsahq/balsa/node/containerlogs"
	"github.com/balsahq/balsa/node/cri"
	"github.com/balsahq/balsa/node/criconfig"
	"github.com/balsahq/balsa/node/podloop"
)

// operation carries out one action and returns a function that writes the result into the worker's state. The operation runs
// outside the worker's goroutine, so it may only use what it was given; the returned function runs in it.
type operation func(ctx context.Context) (apply func())

// operationFor returns the operation of an action. It is called in the worker's goroutine.
func (w *Worker) operationFor(a podloop.Action) operation {
	switch a.Verb {
	case podloop.AllocateResources:
		return w.allocateResources()
	case podloop.PrepareClaims:
		return w.prepareClaims()
	case podloop.SetUpVolumes:
		return w.setUpVolumes()
	case podloop.CreateSandbox:
		return w.runSandbox(a)
	case podloop.PullImage:
		return w.pullImage(a)
	case podloop.StartContainer:
		return w.startContainer(a)
	case podloop.KillContainer:
		return w.killContainer(a)
	case podloop.StopSandbox:
		return w.stopSandbox(a)
	case podloop.TearDown:
		return w.tearDown()
	case podloop.DeletePod:
		return w.deletePod()
	case podloop.PurgePod:
		return w.purgePod()
	case podloop.PruneContainers:
		return w.pruneContainers(a)
	case podloop.ResizePod:
		return w.resizePod()
	}
	return func(context.Context) func() { return func() {} }
}

// retryLater returns the result of an operation that failed: a retry in *r.
func (w *Worker) retryLater(r **podloop.Retry, reason string, err error) func() {
	return func() { *r = (*r).After(w.observed.Now, reason, err) }
}

// setUpVolumes sets up the pod's volumes. If that fails it is tried again after a delay, or at once when an object that the
// volumes show appeared meanwhile.
func (w *Worker) setUpVolumes() operation {
	pod, found := w.pod, w.sourcesFound
	return func(ctx context.Context) func() {
		if err := os.MkdirAll(w.host.Config.PodDir(pod.UID), 0o750); err != nil {
			return w.retryLater(&w.observed.VolumesRetry, "FailedMount", err)
		}
		mounts, err := w.host.Volumes.SetUp(ctx, pod)
		if err != nil {
			if ctx.Err() == nil {
				w.host.Events.Event(pod, v1.EventTypeWarning, "FailedMount", err.Error())
			}
			return func() {
				w.retryLater(&w.observed.VolumesRetry, "FailedMount", err)()
				if w.sourcesFound != found {
					w.observed.VolumesRetry.NotBefore = w.observed.Now
				}
				w.volumesStale = w.volumesStale || w.observed.Volumes // the files that are there are still the old ones
			}
		}
		return func() {
			first := !w.observed.Volumes
			w.mounts, w.observed.Volumes, w.observed.VolumesRetry = mounts, true, nil
			if first {
				w.saveRecord()
			}
		}
	}
}

func (w *Worker) runSandbox(a podloop.Action) operation {
	pod := w.pod
	return func(ctx context.Context) func() {
		w.host.Counters.PodStarts(criconfig.HasUserNamespace(pod))
		b, handler, err := w.createSandbox(context.WithoutCancel(ctx), pod, uint32(a.Attempt))
		if err != nil {
			w.host.Counters.PodFailed(criconfig.HasUserNamespace(pod))
			w.host.Events.Event(pod, v1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+cri.Message(err))
			return func() {
				w.observed.SandboxRetry = w.observed.SandboxRetry.Again(w.observed.Now, podloop.Failure{Reason: "FailedCreatePodSandBox", Message: err.Error()}, time.Second, podloop.MaxRetry)
			}
		}
		return func() { w.observed.Sandbox, w.observed.SandboxRetry, w.handler = b, nil, handler }
	}
}

func (w *Worker) createSandbox(ctx context.Context, pod *v1.Pod, attempt uint32) (*podloop.Sandbox, string, error) {
	qos := v1qos.GetPodQOS(pod)
	parent, err := w.host.Cgroups.Apply(pod.UID, qos, w.host.podLimits(pod, qos))
	if err != nil {
		return nil, "", err
	}
	handler, err := w.host.runtimeHandler(ctx, pod)
	if err != nil {
		return nil, "", err
	}
	users, err := w.host.userNamespace(pod, handler)
	if err != nil {
		return nil, "", err
	}
	cfg, warnings, err := w.host.Config.Sandbox(pod, criconfig.SandboxInput{Attempt: attempt, CgroupParent: parent, Users: users})
	if err != nil {
		return nil, "", err
	}
	for _, dns := range warnings {
		w.host.Events.Event(pod, v1.EventTypeWarning, dns.Reason, dns.Text)
	}
	if err := os.MkdirAll(cfg.LogDirectory, criconfig.DirMode); err != nil {
		return nil, "", err
	}
	id, err := w.host.Runtime.RunPodSandbox(ctx, cfg, handler)
	if err != nil {
		return nil, "", err
	}
	r, err := w.host.Runtime.PodSandboxStatus(ctx, id, false)
	if err != nil {
		return nil, "", err
	}
	return criconfig.SandboxOf(r.Status), handler, nil
}

func (w *Worker) stopSandbox(a podloop.Action) operation {
	return func(ctx context.Context) func() {
		if err := w.host.Runtime.StopPodSandbox(ctx, a.ID); err != nil && !cri.NotFound(err) {
			return w.retryLater(&w.observed.SandboxRetry, "FailedKillPod", err)
		}
		return func() {
			if b := w.observed.Sandbox; b != nil && b.ID == a.ID {
				b.Ready, b.Stopped = false, true
			}
			w.observed.SandboxRetry = nil
		}
	}
}

func (w *Worker) tearDown() operation {
	cleanups := w.cleanups
	w.cleanups = map[string]func(){}
	return func(ctx context.Context) func() {
		for _, c := range cleanups {
			c()
		}
		if err := w.host.Claims.Unprepare(ctx, w.uid); err != nil {
			w.host.Logger.Warn("the devices of the pod's claims cannot be taken back; it is tried again", "pod", w.uid, "err", err)
			return w.retryLater(&w.observed.TearDownRetry, "FailedUnprepareDynamicResources", err)
		}
		if err := w.host.Volumes.TearDown(ctx, w.uid); err != nil {
			w.host.Logger.Warn("the pod's volumes cannot be removed; they are tried again", "pod", w.uid, "err", err)
			return w.retryLater(&w.observed.TearDownRetry, "FailedUnmount", err)
		}
		if err := w.host.Cgroups.Remove(w.uid); err != nil {
			return w.retryLater(&w.observed.TearDownRetry, "FailedCgroup", err)
		}
		if err := w.host.Users.Release(w.uid); err != nil {
			return w.retryLater(&w.observed.TearDownRetry, "FailedUserNamespace", err)
		}
		w.host.Allocator.Release(w.uid)
		return func() { w.observed.TornDown, w.observed.TearDownRetry = true, nil }
	}
}

func (w *Worker) deletePod() operation {
	pod := w.pod
	return func(ctx context.Context) func() {
		grace, uid := int64(0), pod.UID
		err := w.host.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: &uid}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			w.host.Logger.Warn("the pod has ended and its object cannot be deleted; it is tried again", "pod", podloop.PodName(pod), "err", err)
			return w.retryLater(&w.observed.DeleteRetry, "Delete", err)
		}
		return func() {
			// A finalizer may keep the object. Then its deletion comes as an event later, and until then nothing is asked again.
			w.observed.DeleteRetry = &podloop.Retry{Delay: time.Second, NotBefore: w.observed.Now.Add(time.Minute)}
			if err != nil || len(w.pod.Finalizers) == 0 {
				w.observed.Gone = true
			}
		}
	}
}

// purgePod removes everything that the runtime and the disk still have of the pod.
func (w *Worker) purgePod() operation {
	pod := w.pod
	return func(ctx context.Context) func() {
		if err := w.removeRemains(ctx, pod); err != nil {
			if ctx.Err() == nil {
				w.host.Logger.Warn("what the pod left in the runtime or on the disk cannot be removed; it is tried again", "pod", podloop.PodName(pod), "err", err)
			}
			return w.retryLater(&w.observed.PurgeRetry, "FailedPurge", err)
		}
		return func() { w.observed.Purged = true }
	}
}

func (w *Worker) removeRemains(ctx context.Context, pod *v1.Pod) error {
	boxes, err := w.host.Runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{
		LabelSelector: map[string]string{kubelettypes.KubernetesPodUIDLabel: string(pod.UID)}})
	if err != nil {
		return err
	}
	for _, b := range boxes {
		if b.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			if err := w.host.Runtime.StopPodSandbox(ctx, b.Id); err != nil && !cri.NotFound(err) {
				return err
			}
		}
		if err := w.host.Runtime.RemovePodSandbox(ctx, b.Id); err != nil && !cri.NotFound(err) {
			return err
		}
	}
	containerlogs.RemoveLinks(w.host.Config.LogDir, pod)
	if err := os.RemoveAll(containerlogs.PodDir(w.host.Config.LogDir, pod)); err != nil {
		return err
	}
	return RemovePodDir(w.host.Config.PodDir(pod.UID))
}

// RemovePodDir removes the agent's directory of a pod. It does not descend into volumes, because data may be mounted there:
// the volume manager has unmounted and removed them before, else RemovePodDir fails.
func RemovePodDir(dir string) error {
	for _, sub := range []string{"containers", "etc-hosts", recordFile, recordFile + ".tmp"} {
		if err := os.RemoveAll(filepath.Join(dir, sub)); err != nil {
			return err
		}
	}
	for _, sub := range []string{"volumes", "plugins", "volume-subpaths"} {
		_ = os.Remove(filepath.Join(dir, sub))
	}
	if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("pod directory: %w", err)
	}
	return nil
}

// pruneContainers removes old dead containers, and stopped sandboxes that have no container any more.
func (w *Worker) pruneContainers(a podloop.Action) operation {
	pod := w.pod
	keep := map[string]bool{}
	if w.observed.Sandbox != nil {
		keep[w.observed.Sandbox.ID] = true
	}
	gone := map[string]bool{}
	for _, id := range a.IDs {
		gone[id] = true
	}
	for _, ins := range w.observed.Containers {
		for _, in := range ins {
			if !gone[in.ID] {
				keep[in.SandboxID] = true
			}
		}
	}
	return func(ctx context.Context) func() {
		var done []string
		var failed error
		for _, id := range a.IDs {
			if err := w.host.Runtime.RemoveContainer(ctx, id); err == nil || cri.NotFound(err) {
				done = append(done, id)
			} else {
				failed = err
				w.host.Logger.Warn("a dead container cannot be removed; it is tried again", "pod", podloop.PodName(pod), "container", id, "err", err)
			}
		}
		w.removeSandboxes(ctx, pod, keep)
		return func() {
			w.observed.PruneRetry = w.observed.PruneRetry.After(w.observed.Now, "FailedRemove", failed)
			for _, id := range done {
				if in := w.observed.ByID(id); in != nil {
					w.removeContainerFiles(in)
				}
				w.observed.Remove(id)
				w.runCleanup(id)
			}
		}
	}
}

func (w *Worker) removeSandboxes(ctx context.Context, pod *v1.Pod, keep map[string]bool) {
	boxes, err := w.host.Runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{
		LabelSelector: map[string]string{kubelettypes.KubernetesPodUIDLabel: string(pod.UID)}})
	if err != nil {
		return
	}
	for _, b := range boxes {
		if !keep[b.Id] && b.State != runtimeapi.PodSandboxState_SANDBOX_READY {
			_ = w.host.Runtime.RemovePodSandbox(ctx, b.Id)
		}
	}
}

// removeContainerFiles removes the logs and the termination message of a dead container.
func (w *Worker) removeContainerFiles(in *podloop.Instance) {
	if in.LogPath != "" {
		old, _ := filepath.Glob(in.LogPath + "*")
		for _, f := range old {
			_ = os.Remove(f)
		}
	}
	if in.TerminationMessageFile != "" && filepath.Dir(filepath.Dir(filepath.Dir(in.TerminationMessageFile))) == w.host.Config.PodDir(w.uid) {
		_ = os.Remove(in.TerminationMessageFile)
	}
}

// runCleanup undoes what was made for one container alone, such as the mounts of its subpaths.
func (w *Worker) runCleanup(id string) {
	if c := w.cleanups[id]; c != nil {
		delete(w.cleanups, id)
		c()
	}
}
