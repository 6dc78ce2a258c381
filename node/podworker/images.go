package podworker

import (
	"context"
	"maps"
	"time"

	"github.com/balsahq/balsa/node/images"
	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/volume"
)

// minPullDelay and maxPullDelay bound the delay before a failed pull is tried again; upstream's values.
const (
	minPullDelay = 10 * time.Second
	maxPullDelay = 5 * time.Minute
)

func (w *Worker) pullImage(a podloop.Action) operation {
	pod, handler := w.pod, w.handler
	c, kind := podloop.FindContainer(pod, a.Container)
	return func(ctx context.Context) func() {
		began := time.Now()
		im, fail := w.host.Images.Ensure(ctx, images.Request{Pod: pod, Container: c, Handler: handler, Event: func(t, reason, message string) {
			w.containerEventOf(pod, c.Name, kind, t, reason, message)
		}})
		took := time.Since(began)
		return func() {
			w.pulling += took
			if fail == nil {
				w.observed.Images[a.Container] = im
				return
			}
			first, most := minPullDelay, maxPullDelay
			if fail.Reason != "ErrImagePull" {
				most = minPullDelay
			}
			w.observed.Images[a.Container] = podloop.Image{Retry: w.observed.Images[a.Container].Retry.Again(w.observed.Now, *fail, first, most)}
		}
	}
}

// withImageReferences returns mounts with the runtime's references in place of the names of images.
func withImageReferences(mounts volume.Mounts, im podloop.Image) volume.Mounts {
	if len(im.Volumes) == 0 {
		return mounts
	}
	mounts = maps.Clone(mounts)
	for name, ref := range im.Volumes {
		v := mounts[name]
		v.Image = ref
		mounts[name] = v
	}
	return mounts
}
