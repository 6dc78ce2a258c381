package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/node/cri"
	"github.com/balsahq/balsa/node/criconfig"
	"github.com/balsahq/balsa/node/podloop"
)

// adopt reads what an earlier life of the agent left running.
func (a *Agent) adopt(ctx context.Context) error {
	pods, err := cri.ListPods(ctx, a.runtime)
	if err != nil {
		a.log.Warn("runtime not listed", "err", err)
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid, p := range pods {
		a.adopted[uid] = p.Observed()
	}
	a.orphanNames = map[types.UID][2]string{}
	for uid, p := range pods {
		a.orphanNames[uid] = [2]string{p.Namespace, p.Name}
	}
	return nil
}

// adopt takes over what the runtime has of the pod. What the API said of
// readiness stays true until a probe says otherwise.
func (w *worker) adopt(o *podloop.Observed) {
	o.StartTime = w.o.StartTime
	w.o = o
	if o.Sandbox != nil {
		w.handler = o.Sandbox.Handler
	}
	for _, sts := range [][]v1.ContainerStatus{w.pod.Status.InitContainerStatuses, w.pod.Status.ContainerStatuses} {
		for i := range sts {
			in := o.Latest(sts[i].Name)
			if in == nil || sts[i].ContainerID != w.a.runtimeName+"://"+in.ID {
				continue
			}
			o.Ready[in.ID] = sts[i].Ready
			o.StartedUp[in.ID] = sts[i].Started != nil && *sts[i].Started
		}
	}
	for _, ins := range o.Containers {
		for _, in := range ins {
			if in.State == podloop.StateExited {
				in.TerminationMessage = true
				w.readTermination(in, w.policyOf(in.Name))
			}
		}
	}
	for name := range o.Containers {
		o.Backoff[name] = podloop.BackoffOf(o.Latest(name))
	}
	// Probes of what runs begin with the worker.
	w.mailbox.post(func() {
		for _, name := range o.ContainerNames() {
			if c, _ := podloop.FindContainer(w.pod, name); c != nil && o.Latest(name) != nil {
				w.startProbes(c, o.Latest(name).ID)
			}
		}
	})
}

func (w *worker) policyOf(name string) v1.TerminationMessagePolicy {
	if c, _ := podloop.FindContainer(w.pod, name); c != nil {
		return c.TerminationMessagePolicy
	}
	return v1.TerminationMessageReadFile
}

// relisted compares with a full list: what is missing there is gone, unless an
// operation is under way that may just have made it.
func (w *worker) relisted(p *cri.Pod) {
	if len(w.ops) > 0 {
		for _, c := range p.Containers {
			if w.o.ByID(c.Id) != nil {
				w.observe(c, p.SandboxOf[c.Id])
			}
		}
		return
	}
	there := map[string]bool{}
	for _, c := range p.Containers {
		there[c.Id] = true
		w.observe(c, p.SandboxOf[c.Id])
	}
	for _, ins := range w.o.Containers {
		for _, in := range ins {
			if !there[in.ID] {
				w.o.Remove(in.ID)
			}
		}
	}
	b := p.Newest()
	switch {
	case b == nil:
		w.o.Sandbox = nil
	case w.o.Sandbox == nil || w.o.Sandbox.ID != b.Id:
		w.o.Sandbox = criconfig.SandboxOf(b)
	case b.State != runtimeapi.PodSandboxState_SANDBOX_READY:
		w.o.Sandbox.Ready = false
	}
}

// endOrphans ends pods that run here and that the API no longer knows.
func (a *Agent) endOrphans(ctx context.Context) {
	a.mu.Lock()
	var begun []*worker
	for uid, o := range a.adopted {
		if a.keepsStatic(uid) {
			continue
		}
		names := a.orphanNames[uid]
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: names[0], Name: names[1], UID: uid}}
		for _, name := range o.ContainerNames() {
			pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: name})
		}
		w := newWorker(a, pod)
		w.adopt(o)
		w.o.Gone = true
		a.workers[uid] = w
		delete(a.adopted, uid)
		begun = append(begun, w)
	}
	keep := func(uid types.UID) bool { return a.worker(uid) != nil }
	a.mu.Unlock()
	for _, w := range begun {
		a.begin(ctx, w)
	}
	for _, uid := range a.cgroups.Pods() {
		if !keep(uid) {
			if err := a.cgroups.Remove(uid); err != nil {
				a.log.Warn("cgroup of a former pod", "pod", uid, "err", err)
			}
		}
	}
	if err := a.volumes.CleanUpOrphans(ctx, keep); err != nil {
		a.log.Warn("volumes of former pods", "err", err)
	}
	a.removeFormerDirs(keep)
}

// removeFormerDirs removes directories and logs of pods that are no more.
func (a *Agent) removeFormerDirs(keep func(types.UID) bool) {
	dirs, _ := os.ReadDir(filepath.Join(a.cfg.RootDir, "pods"))
	for _, d := range dirs {
		if !keep(types.UID(d.Name())) {
			if err := a.users.Release(types.UID(d.Name())); err != nil {
				a.log.Warn("user namespace of a former pod", "err", err)
			}
			if err := removePodDir(a.translate.PodDir(types.UID(d.Name()))); err != nil {
				a.log.Warn("directory of a former pod", "err", err)
			}
		}
	}
	logs, _ := os.ReadDir(filepath.Join(a.cfg.LogDir, "pods"))
	for _, d := range logs {
		i := strings.LastIndexByte(d.Name(), '_')
		if i < 0 || keep(types.UID(d.Name()[i+1:])) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(a.cfg.LogDir, "pods", d.Name())); err != nil {
			a.log.Warn("logs of a former pod", "err", err)
		}
	}
	links, _ := filepath.Glob(filepath.Join(a.cfg.LogDir, "containers", "*.log"))
	for _, l := range links {
		if _, err := os.Stat(l); os.IsNotExist(err) {
			_ = os.Remove(l)
		}
	}
}
