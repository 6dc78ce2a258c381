package images

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sort"
	"time"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	criapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/balsahq/balsa/node/diskspace"
)

// Collector removes unused images while their file system is too full. One goroutine uses it.
type Collector struct {
	Images  criapi.ImageManagerService
	Runtime criapi.RuntimeService
	Pods    func() []*v1.Pod // of this node; their images stay
	// HighPercent of the file system in use begins a collection, which goes down to LowPercent.
	HighPercent, LowPercent int
	Changed                 func() // called after a collection
	Logger                  *slog.Logger

	seen map[string]time.Time // since when each image is known, by ID
}

// minImageAge protects an image from removal between its pull and its first use.
const minImageAge = 2 * time.Minute

// Collect removes images that no container uses, the longest known first, while their file system is too full.
func (c *Collector) Collect(ctx context.Context) error {
	if c.seen == nil {
		c.seen = map[string]time.Time{}
	}
	seen := c.seen
	list, err := c.Images.ListImages(ctx, nil)
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
	total, free, err := c.imageDisk(ctx)
	if err != nil || total == 0 || (total-free)*100 < total*int64(c.HighPercent) {
		return err
	}
	want := (total - free) - total*int64(c.LowPercent)/100
	used, err := c.usedImages(ctx)
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
		if err := c.Images.RemoveImage(ctx, &runtimeapi.ImageSpec{Image: im.Id}); err != nil {
			c.Logger.Warn("an unused image cannot be removed; the next one is tried", "image", im.Id, "err", err)
			continue
		}
		freed += int64(im.Size)
	}
	c.Changed()
	if freed < want {
		return fmt.Errorf("failed to garbage collect required amount of images. Attempted to free %d bytes, but only found %d bytes eligible to free", want, freed)
	}
	return nil
}

func (c *Collector) imageDisk(ctx context.Context) (total, free int64, err error) {
	r, err := c.Images.ImageFsInfo(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, f := range r.ImageFilesystems {
		if p := f.GetFsId().GetMountpoint(); p != "" {
			return diskspace.Of(p)
		}
	}
	return 0, 0, nil
}

// usedImages returns the names and IDs of the images of all containers, and of all pods on the node, which may start one.
func (c *Collector) usedImages(ctx context.Context) (map[string]bool, error) {
	used := map[string]bool{}
	cs, err := c.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, ct := range cs {
		used[ct.ImageRef], used[ct.ImageId], used[ct.GetImage().GetImage()] = true, true, true
	}
	for _, pod := range c.Pods() {
		for name := range podImages(pod) {
			used[name] = true
		}
	}
	return used, nil
}

// podImages returns the full names of the images that a pod runs or mounts.
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

// inUse reports whether one of an image's names or its ID is in used.
func inUse(im *runtimeapi.Image, used map[string]bool) bool {
	named := func(name string) bool { return used[name] }
	return used[im.Id] || slices.ContainsFunc(im.RepoTags, named) || slices.ContainsFunc(im.RepoDigests, named)
}
