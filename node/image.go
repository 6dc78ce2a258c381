package node

import (
	"context"
	"maps"
	"time"

	"github.com/balsahq/balsa/node/images"
	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/volume"
)

const (
	firstPullDelay = 10 * time.Second
	mostPullDelay  = 5 * time.Minute
)

func (w *worker) opImage(a podloop.Action) operation {
	pod, handler := w.pod, w.handler
	c, kind := podloop.FindContainer(pod, a.Container)
	return func(ctx context.Context) func() {
		im, fail := w.host.Images.Ensure(ctx, images.Request{Pod: pod, Container: c, Handler: handler, Event: func(t, reason, message string) {
			w.containerEventOf(pod, c.Name, kind, t, reason, message)
		}})
		return func() {
			if fail == nil {
				w.o.Images[a.Container] = im
				return
			}
			first, most := firstPullDelay, mostPullDelay
			if fail.Reason != "ErrImagePull" {
				most = firstPullDelay
			}
			w.o.Images[a.Container] = podloop.Image{Retry: w.o.Images[a.Container].Retry.Again(w.o.Now, *fail, first, most)}
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
