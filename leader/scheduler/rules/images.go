package rules

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

// ImageLocality prefers nodes that have the pod's images. An image counts by its size and by the share of nodes that have it, so that the
// one node with an image does not get all pods.
var ImageLocality = Score{
	Name:   "ImageLocality",
	Weight: 1,
	Prepare: func(c *Cycle, _ []*snapshot.Node) Scorer {
		images, containers := podImages(c.Pod.Object)
		images = slices.DeleteFunc(images, func(name string) bool { return c.Snapshot.ImageNodes(name) == 0 })
		if len(images) == 0 {
			return nil
		}
		total := float64(len(c.Snapshot.Nodes))
		return ScoreFunc(func(n *snapshot.Node) int64 {
			var sum int64
			for _, name := range images {
				if size, ok := n.Images[name]; ok {
					sum += int64(float64(size) * float64(c.Snapshot.ImageNodes(name)) / total)
				}
			}
			return imageScore(sum, containers)
		})
	},
}

const (
	imageFloor   int64 = 23 << 20
	imageCeiling int64 = 1000 << 20 // for each container
)

func imageScore(sum, containers int64) int64 {
	ceiling := imageCeiling * containers
	sum = min(max(sum, imageFloor), ceiling)
	return MaxScore * (sum - imageFloor) / (ceiling - imageFloor)
}

func podImages(p *v1.Pod) (images []string, containers int64) {
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			images = append(images, snapshot.ImageName(list[i].Image))
			containers++
		}
	}
	for i := range p.Spec.Volumes {
		if image := p.Spec.Volumes[i].Image; image != nil {
			images = append(images, snapshot.ImageName(image.Reference))
		}
	}
	return images, containers
}
