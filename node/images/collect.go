package images

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	criapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/balsahq/balsa/node/diskspace"
)

// Collector removes unused images. Its methods may be called at the same time.
type Collector struct {
	Images  criapi.ImageManagerService
	Runtime criapi.RuntimeService
	Pods    func() []*v1.Pod // of this node; their images stay
	// HighPercent of the file system in use begins a collection, which goes down to LowPercent.
	HighPercent, LowPercent int
	// MinAge protects an image from removal between its pull and its first use. Images that were not used for MaxAge are
	// removed however much space there is; 0: none is.
	MinAge, MaxAge time.Duration
	Changed        func() // called after a collection
	Logger         *slog.Logger

	mu    sync.Mutex
	known map[string]history // by ID
}

// history is since when an image is known, and when it was last seen in use.
type history struct{ first, used time.Time }

// Collect removes images that were not used for MaxAge, and further ones while their file system is too full.
func (c *Collector) Collect(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, err := c.look(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	c.remove(ctx, old(all, now, c.MaxAge), func(int64) bool { return false })
	if c.HighPercent >= 100 {
		return nil
	}
	total, free, err := c.imageDisk(ctx)
	if err != nil || total == 0 || (total-free)*100 < total*int64(c.HighPercent) {
		return err
	}
	want := (total - free) - total*int64(c.LowPercent)/100
	if freed := c.remove(ctx, removable(all, now, c.MinAge), func(freed int64) bool { return freed >= want }); freed < want {
		return fmt.Errorf("failed to garbage collect required amount of images. Attempted to free %d bytes, but only found %d bytes eligible to free", want, freed)
	}
	return nil
}

// CollectUntil removes unused images that are older than MinAge until enough reports true, which is asked before each.
func (c *Collector) CollectUntil(ctx context.Context, enough func() bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, err := c.look(ctx)
	if err != nil {
		return err
	}
	c.remove(ctx, removable(all, time.Now(), c.MinAge), func(int64) bool { return enough() })
	return nil
}

// look lists the images and notes which are in use now.
func (c *Collector) look(ctx context.Context) ([]image, error) {
	list, err := c.Images.ListImages(ctx, nil)
	if err != nil {
		return nil, err
	}
	used, err := c.usedImages(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	known := make(map[string]history, len(list))
	all := make([]image, 0, len(list))
	for _, im := range list {
		h, ok := c.known[im.Id]
		if !ok {
			h = history{first: now}
		}
		in := inUse(im, used)
		if in {
			h.used = now
		}
		known[im.Id] = h
		all = append(all, image{im, h, in})
	}
	c.known = known
	return all, nil
}

// remove removes images in their order until enough, which is told how many bytes are freed, reports true. It returns that
// number.
func (c *Collector) remove(ctx context.Context, list []image, enough func(freed int64) bool) int64 {
	var freed int64
	for _, im := range list {
		if enough(freed) {
			break
		}
		if _, there := c.known[im.Id]; !there {
			continue // removed by its age
		}
		if err := c.Images.RemoveImage(ctx, &runtimeapi.ImageSpec{Image: im.Id}); err != nil {
			c.Logger.Warn("an unused image cannot be removed; the next one is tried", "image", im.Id, "err", err)
			continue
		}
		delete(c.known, im.Id)
		freed += int64(im.Size)
	}
	if len(list) > 0 {
		c.Changed()
	}
	return freed
}

func (c *Collector) imageDisk(ctx context.Context) (total, free int64, err error) {
	path, err := MountPoint(ctx, c.Images)
	if err != nil || path == "" {
		return 0, 0, err
	}
	return diskspace.Of(path)
}

// MountPoint returns a path on the file system of images; "" when the runtime names none.
func MountPoint(ctx context.Context, service criapi.ImageManagerService) (string, error) {
	r, err := service.ImageFsInfo(ctx)
	if err != nil {
		return "", err
	}
	for _, f := range r.ImageFilesystems {
		if p := f.GetFsId().GetMountpoint(); p != "" {
			return p, nil
		}
	}
	return "", nil
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
