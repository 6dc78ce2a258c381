package podloop

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
)

// FindContainer finds a container of any kind in a spec.
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

// ContainerHash changes when a running container no longer is what the spec
// asks for: of the fields that may change, only the image needs a restart.
func ContainerHash(c *v1.Container) string {
	h := fnv.New32a()
	b, _ := json.Marshal(map[string]string{"name": c.Name, "image": c.Image})
	_, _ = h.Write(b)
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}

// PodName is how messages name a pod.
func PodName(pod *v1.Pod) string { return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID) }

func crashLoopMessage(delay time.Duration, container string, pod *v1.Pod) string {
	return fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", delay, container, PodName(pod))
}
