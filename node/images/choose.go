package images

import (
	"cmp"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// image is one of the runtime's images with its history.
type image struct {
	*runtimeapi.Image
	history
	inUse bool
}

// lastUse returns when the image was last used; an image that was never used counts from when it became known.
func (i image) lastUse() time.Time {
	if i.used.IsZero() {
		return i.first
	}
	return i.used
}

// imported reports whether the image came from an archive: a pull gives an image the digest under which its registry has
// it. An imported image can often not be pulled again.
func (i image) imported() bool { return len(i.RepoDigests) == 0 }

// removable returns the images that may be removed, in the order in which they go: the least recently used first, and
// imported ones after all others.
func removable(all []image, now time.Time, minAge time.Duration) []image {
	var out []image
	for _, i := range all {
		if !i.inUse && !i.Pinned && now.Sub(i.first) >= minAge {
			out = append(out, i)
		}
	}
	slices.SortStableFunc(out, func(a, b image) int {
		if a.imported() != b.imported() {
			if b.imported() {
				return -1
			}
			return 1
		}
		return cmp.Or(a.lastUse().Compare(b.lastUse()), a.first.Compare(b.first))
	})
	return out
}

// old returns the images that were not used for maxAge; none when that is 0. Imported ones stay.
func old(all []image, now time.Time, maxAge time.Duration) []image {
	if maxAge == 0 {
		return nil
	}
	return slices.DeleteFunc(removable(all, now, 0), func(i image) bool { return i.imported() || now.Sub(i.lastUse()) <= maxAge })
}
