package podloop

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
)

// FindContainer returns the container of a name, of any kind, and its kind; nil when the spec has none.
func FindContainer(pod *v1.Pod, name string) (*v1.Container, ContainerKind) {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return &pod.Spec.Containers[i], KindRegular
		}
	}
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return &pod.Spec.InitContainers[i], KindInit
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return ephemeralContainer(&pod.Spec.EphemeralContainers[i]), KindEphemeral
		}
	}
	return nil, KindRegular
}

func ephemeralContainer(e *v1.EphemeralContainer) *v1.Container {
	return (*v1.Container)(&e.EphemeralContainerCommon)
}

// ContainerHash returns a digest that changes when a running container has to be replaced. Of the fields that may change in
// a pod, only the image needs that.
func ContainerHash(c *v1.Container) string {
	h := fnv.New32a()
	b, _ := json.Marshal(map[string]string{"name": c.Name, "image": c.Image})
	_, _ = h.Write(b)
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}

// Outdated reports whether the run was started from another image than the spec has now. The new image starts at once, without
// the crash back-off of the former one.
func (in *Instance) Outdated(c *v1.Container) bool {
	return in.Hash != "" && in.Hash != ContainerHash(c)
}

// PodName returns the name of a pod in messages, in upstream's form.
func PodName(pod *v1.Pod) string { return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID) }

func crashLoopMessage(delay time.Duration, container string, pod *v1.Pod) string {
	return fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", delay, container, PodName(pod))
}
