package kubeletapi

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// containerSpec tells whether the pod declares the container, and whether that has a terminal.
func containerSpec(pod *v1.Pod, name string) (found, tty bool) {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return true, list[i].TTY
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return true, pod.Spec.EphemeralContainers[i].TTY
		}
	}
	return false, false
}

func containerStatus(pod *v1.Pod, name string) *v1.ContainerStatus {
	st := &pod.Status
	for _, list := range [][]v1.ContainerStatus{st.ContainerStatuses, st.InitContainerStatuses, st.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// bareID takes the runtime's name off a container id: containerd://ID.
func bareID(id string) string {
	if _, bare, ok := strings.Cut(id, "://"); ok {
		return bare
	}
	return id
}

// logContainer returns the id of the container whose log is meant; the error tells users why there is none.
func logContainer(pod *v1.Pod, name string, previous bool) (string, error) {
	st := containerStatus(pod, name)
	if st == nil {
		return "", fmt.Errorf("container %q in pod %q is not available", name, pod.Name)
	}
	state, last := st.State, ""
	if t := st.LastTerminationState.Terminated; t != nil {
		last = bareID(t.ContainerID)
	}
	switch {
	case previous && last == "":
		return "", fmt.Errorf("previous terminated container %q in pod %q not found", name, pod.Name)
	case previous:
		return last, nil
	case state.Running != nil:
		return bareID(st.ContainerID), nil
	case state.Terminated != nil && state.Terminated.ContainerID != "":
		return bareID(state.Terminated.ContainerID), nil
	case last != "":
		return last, nil
	case state.Terminated != nil || st.LastTerminationState.Terminated != nil:
		return "", fmt.Errorf("container %q in pod %q is terminated", name, pod.Name)
	case state.Waiting == nil:
		return "", fmt.Errorf("container %q in pod %q is waiting to start - no logs yet", name, pod.Name)
	}
	why := state.Waiting.Reason
	switch why {
	case "ErrImagePull":
		why = "image can't be pulled"
	case "ImagePullBackOff":
		why = "trying and failing to pull image"
	}
	return "", fmt.Errorf("container %q in pod %q is waiting to start: %v", name, pod.Name, why)
}
