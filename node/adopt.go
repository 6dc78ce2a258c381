package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/node/cri"
	"github.com/balsahq/balsa/node/podworker"
)

// adopt reads what runs in the runtime since before the agent's start.
func (a *Agent) adopt(ctx context.Context) error {
	pods, err := cri.ListPods(ctx, a.runtime)
	if err != nil {
		a.log.Warn("the runtime cannot be listed; it is tried again before any pod is handled", "err", err)
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

// endOrphans ends the pods that run here and that the API no longer has, and removes what former pods left on the machine.
func (a *Agent) endOrphans(ctx context.Context) {
	a.mu.Lock()
	var begun []*podworker.Worker
	for uid, o := range a.adopted {
		if a.keepsStatic(uid) {
			continue
		}
		names := a.orphanNames[uid]
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: names[0], Name: names[1], UID: uid}}
		for _, name := range o.ContainerNames() {
			pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: name})
		}
		w := podworker.NewOrphan(a.host, pod, o)
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
				a.log.Warn("the cgroup of a former pod cannot be removed; it stays until the next start", "pod", uid, "err", err)
			}
		}
	}
	a.allocator.KeepOnly(func(uid types.UID) bool { return keep(uid) || a.keepsStatic(uid) })
	a.unprepareFormer(ctx)
	a.removeFormerVolumes(ctx)
	a.removeFormerDirs(keep)
}

// unprepareFormer takes back the devices of pods that are no more. Those of a driver that is not there yet stay, and housekeeping asks
// again.
func (a *Agent) unprepareFormer(ctx context.Context) {
	err := a.claims.UnprepareFormer(ctx, func(uid types.UID) bool { return a.worker(uid) != nil })
	a.formerClaims.Store(err != nil)
	if err != nil && ctx.Err() == nil {
		a.log.Warn("devices of former pods not taken back; tries again", "err", err)
	}
}

// removeFormerVolumes removes the volumes of pods that are no more. One of a CSI driver that is not there yet stays, and
// housekeeping asks again.
func (a *Agent) removeFormerVolumes(ctx context.Context) {
	err := a.volumes.CleanUpOrphans(ctx, func(uid types.UID) bool { return a.worker(uid) != nil })
	a.formerVolumes.Store(err != nil)
	if err != nil && ctx.Err() == nil {
		a.log.Warn("volumes of former pods not removed; tries again", "err", err)
	}
}

// removeFormerDirs removes the directories, logs and log links of pods that are not on the node any more.
func (a *Agent) removeFormerDirs(keep func(types.UID) bool) {
	dirs, _ := os.ReadDir(filepath.Join(a.cfg.RootDir, "pods"))
	for _, d := range dirs {
		if !keep(types.UID(d.Name())) {
			if err := a.users.Release(types.UID(d.Name())); err != nil {
				a.log.Warn("the user namespace IDs of a former pod cannot be released; they stay taken until the next start", "err", err)
			}
			if err := podworker.RemovePodDir(a.translate.PodDir(types.UID(d.Name()))); err != nil {
				a.log.Warn("the directory of a former pod cannot be removed; it stays until the next start", "err", err)
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
			a.log.Warn("the logs of a former pod cannot be removed; they stay until the next start", "err", err)
		}
	}
	links, _ := filepath.Glob(filepath.Join(a.cfg.LogDir, "containers", "*.log"))
	for _, l := range links {
		if _, err := os.Stat(l); os.IsNotExist(err) {
			_ = os.Remove(l)
		}
	}
}
