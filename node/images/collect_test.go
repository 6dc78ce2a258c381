package images

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestImagesThatAPodNamesAreInUse(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{
		Containers: []v1.Container{{Image: "busybox"}},
		Volumes:    []v1.Volume{{VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "example.com/data:1"}}}},
	}}
	for tag, want := range map[string]bool{"docker.io/library/busybox:latest": true, "example.com/data:1": true, "example.com/data:2": false} {
		if got := inUse(&runtimeapi.Image{Id: "sha256:0", RepoTags: []string{tag}}, podImages(pod)); got != want {
			t.Errorf("%s in use: %v", tag, got)
		}
	}
}
