package images

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	criapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// shelf is a runtime that has images and no container.
type shelf struct {
	criapi.ImageManagerService
	criapi.RuntimeService
	images []*runtimeapi.Image
	stuck  string // an image that cannot be removed
}

func (s *shelf) Close(context.Context) error { return nil }

func (s *shelf) ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return slices.Clone(s.images), nil
}

func (s *shelf) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return nil, nil
}

func (s *shelf) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{}, nil
}

func (s *shelf) RemoveImage(_ context.Context, spec *runtimeapi.ImageSpec) error {
	if spec.Image == s.stuck {
		return errors.New("stuck")
	}
	s.images = slices.DeleteFunc(s.images, func(im *runtimeapi.Image) bool { return im.Id == spec.Image })
	return nil
}

func (s *shelf) pull(name string) {
	s.images = append(s.images, &runtimeapi.Image{Id: name, RepoTags: []string{"docker.io/library/" + name + ":latest"}, RepoDigests: []string{name + "@sha256:0"}, Size: 1})
}

func (s *shelf) load(name string) {
	s.images = append(s.images, &runtimeapi.Image{Id: name, RepoTags: []string{"docker.io/library/" + name + ":latest"}, Size: 1})
}

func (s *shelf) names() string {
	var out []string
	for _, im := range s.images {
		out = append(out, im.Id)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestTheLeastRecentlyUsedImageGoesFirstAndImportedOnesLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, running := &shelf{}, []string{}
		c := &Collector{Images: s, Runtime: s, HighPercent: 100, MinAge: 2 * time.Minute, Changed: func() {}, Logger: slog.New(slog.DiscardHandler),
			Pods: func() []*v1.Pod {
				p := &v1.Pod{}
				for _, im := range running {
					p.Spec.Containers = append(p.Spec.Containers, v1.Container{Image: im})
				}
				return []*v1.Pod{p}
			}}
		look := func(after time.Duration, use ...string) {
			time.Sleep(after)
			running = use
			if err := c.Collect(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		s.load("imported")
		s.pull("early")
		s.pull("late")
		look(0, "early")
		s.pull("never")
		look(time.Hour, "late")
		look(time.Hour, "early")
		look(time.Hour, "late", "early")
		look(time.Hour, "early")
		s.pull("new")
		look(time.Hour, "early")
		running = nil
		var order []string
		for n := len(s.images); n > 0; n-- {
			if err := c.CollectUntil(t.Context(), func() bool { return len(s.images) < n }); err != nil {
				t.Fatal(err)
			}
			order = append(order, s.names())
		}
		want := []string{"early imported late new", "early imported new", "imported new", "new", "new"}
		if !slices.Equal(order, want) {
			t.Errorf("left after each removal: %q, want %q", order, want)
		}
		time.Sleep(2 * time.Minute) // the new image may go now
		if err := c.CollectUntil(t.Context(), func() bool { return false }); err != nil || s.names() != "" {
			t.Errorf("left in the end: %q, %v", s.names(), err)
		}
	})
}

func TestImagesThatWereNotUsedForLongAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{stuck: "stuck"}
		s.load("imported")
		s.pull("old")
		s.pull("stuck")
		s.pull("used")
		c := &Collector{Images: s, Runtime: s, HighPercent: 85, MaxAge: time.Hour, Changed: func() {}, Logger: slog.New(slog.DiscardHandler),
			Pods: func() []*v1.Pod { return []*v1.Pod{{Spec: v1.PodSpec{Containers: []v1.Container{{Image: "used"}}}}} }}
		for _, want := range []string{"imported old stuck used", "imported old stuck used", "imported stuck used"} {
			if err := c.Collect(t.Context()); err != nil || s.names() != want {
				t.Errorf("left: %q, %v, want %q", s.names(), err, want)
			}
			time.Sleep(40 * time.Minute)
		}
	})
}
