package node

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sort"
	"time"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"

	"github.com/balsahq/balsa/node/cgroup"
	"github.com/balsahq/balsa/node/containerlogs"
)

// housekeeping does what no event asks for: logs are rotated, unused images
// removed when the disk fills up.
func (a *Agent) housekeeping(ctx context.Context) {
	logs, images := time.NewTicker(healthInterval), time.NewTicker(gcInterval)
	defer logs.Stop()
	defer images.Stop()
	seen := map[string]time.Time{}
	var shares uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-logs.C:
			a.rotateLogs(ctx)
			shares = a.shareBurstable(shares)
		case <-images.C:
			if err := a.collectImages(ctx, seen); err != nil && ctx.Err() == nil {
				a.log.Warn("images not collected", "err", err)
				a.recorder.Event(nodeRef(a.Node()), v1.EventTypeWarning, "ImageGCFailed", err.Error())
			}
		}
	}
}

// shareBurstable gives the burstable pods together the CPU weight of their requests.
func (a *Agent) shareBurstable(was uint64) uint64 {
	var milli int64
	for _, v := range a.views() {
		if !v.Stopped && v1qos.GetPodQOS(v.Pod) == v1.PodQOSBurstable {
			r := resourcehelper.PodRequests(v.Pod, resourcehelper.PodResourcesOptions{})
			milli += r.Cpu().MilliValue()
		}
	}
	shares := cgroup.Shares(milli)
	if shares == was {
		return was
	}
	if err := a.cgroups.SetBurstable(shares); err != nil {
		a.log.Warn("CPU shares of burstable pods", "err", err)
		return was
	}
	return shares
}

// views are the published pictures of all pods.
func (a *Agent) views() map[types.UID]*podView {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[types.UID]*podView, len(a.workers))
	for uid, w := range a.workers {
		out[uid] = w.snapshot.Load()
	}
	return out
}

// rotateLogs moves logs that have grown too large out of the way.
func (a *Agent) rotateLogs(ctx context.Context) {
	for _, v := range a.views() {
		for id, c := range v.Containers {
			if !c.Running || c.LogPath == "" {
				continue
			}
			st, err := os.Stat(c.LogPath)
			switch {
			case os.IsNotExist(err):
				_ = a.runtime.ReopenContainerLog(ctx, id) // a rotation was cut short
			case err == nil && st.Size() >= a.cfg.LogMaxSize:
				if err := containerlogs.Rotate(c.LogPath, a.cfg.LogMaxFiles, func() error { return a.runtime.ReopenContainerLog(ctx, id) }); err != nil && ctx.Err() == nil {
					a.log.Warn("log not rotated", "path", c.LogPath, "err", err)
				}
			}
		}
	}
}

// minImageAge protects an image from removal between its pull and its first use.
const minImageAge = 2 * time.Minute

// collectImages removes images no container uses, the longest known first,
// while their file system is too full. seen remembers since when each is known.
func (a *Agent) collectImages(ctx context.Context, seen map[string]time.Time) error {
	list, err := a.images.ListImages(ctx, nil)
	if err != nil {
		return err
	}
	now := time.Now()
	there := map[string]bool{}
	for _, im := range list {
		there[im.Id] = true
		if _, ok := seen[im.Id]; !ok {
			seen[im.Id] = now
		}
	}
	for id := range seen {
		if !there[id] {
			delete(seen, id)
		}
	}
	total, free, err := a.imageDisk(ctx)
	if err != nil || total == 0 || (total-free)*100 < total*int64(a.cfg.ImageGCHigh) {
		return err
	}
	want := (total - free) - total*int64(a.cfg.ImageGCLow)/100
	used, err := a.usedImages(ctx)
	if err != nil {
		return err
	}
	sort.Slice(list, func(i, j int) bool { return seen[list[i].Id].Before(seen[list[j].Id]) })
	var freed int64
	for _, im := range list {
		if freed >= want {
			break
		}
		if im.Pinned || inUse(im, used) || now.Sub(seen[im.Id]) < minImageAge {
			continue
		}
		if err := a.images.RemoveImage(ctx, &runtimeapi.ImageSpec{Image: im.Id}); err != nil {
			a.log.Warn("image not removed", "image", im.Id, "err", err)
			continue
		}
		freed += int64(im.Size)
	}
	a.imagesChanged()
	if freed < want {
		return fmt.Errorf("failed to garbage collect required amount of images. Attempted to free %d bytes, but only found %d bytes eligible to free", want, freed)
	}
	return nil
}

func (a *Agent) imageDisk(ctx context.Context) (total, free int64, err error) {
	r, err := a.images.ImageFsInfo(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, f := range r.ImageFilesystems {
		if p := f.GetFsId().GetMountpoint(); p != "" {
			return diskSpace(p)
		}
	}
	return 0, 0, nil
}

// usedImages are the images of every container there is, and of every pod that
// may start one.
func (a *Agent) usedImages(ctx context.Context) (map[string]bool, error) {
	used := map[string]bool{}
	cs, err := a.runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, c := range cs {
		used[c.ImageRef], used[c.ImageId], used[c.GetImage().GetImage()] = true, true, true
	}
	for _, pod := range a.Pods() {
		for name := range podImages(pod) {
			used[name] = true
		}
	}
	return used, nil
}

// podImages are the full names of the images that a pod runs or mounts.
func podImages(pod *v1.Pod) map[string]bool {
	names := map[string]bool{}
	add := func(name string) {
		if named, err := reference.ParseNormalizedNamed(name); err == nil {
			names[reference.TagNameOnly(named).String()] = true
		}
	}
	podutil.VisitContainers(&pod.Spec, podutil.AllContainers, func(c *v1.Container, _ podutil.ContainerType) bool {
		add(c.Image)
		return true
	})
	for i := range pod.Spec.Volumes {
		if v := pod.Spec.Volumes[i].Image; v != nil {
			add(v.Reference)
		}
	}
	return names
}

// inUse reports whether an image goes by one of the names.
func inUse(im *runtimeapi.Image, used map[string]bool) bool {
	named := func(name string) bool { return used[name] }
	return used[im.Id] || slices.ContainsFunc(im.RepoTags, named) || slices.ContainsFunc(im.RepoDigests, named)
}
