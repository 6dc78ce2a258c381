package criconfig

import (
	"encoding/json"
	"maps"
	"strconv"

	v1 "k8s.io/api/core/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/balsahq/balsa/node/podloop"
)

// Annotations of CRI containers hold what the agent must know again after its restart. The names are the upstream kubelet's.
const (
	annotationHash              = "io.kubernetes.container.hash"
	annotationRestartCount      = "io.kubernetes.container.restartCount"
	annotationTerminationPath   = "io.kubernetes.container.terminationMessagePath"
	AnnotationTerminationPolicy = "io.kubernetes.container.terminationMessagePolicy"
	annotationPodDeletionGrace  = "io.kubernetes.pod.deletionGracePeriod"
	annotationPodGrace          = "io.kubernetes.pod.terminationGracePeriod"
	annotationPreStop           = "io.kubernetes.container.preStopHandler"
	annotationPorts             = "io.kubernetes.container.ports"
	DirMode                     = 0o755
	terminationLogMode          = 0o666
	MaxTerminationMessage       = 4096
)

func podLabels(pod *v1.Pod) map[string]string {
	l := map[string]string{}
	maps.Copy(l, pod.Labels)
	l[kubelettypes.KubernetesPodNameLabel] = pod.Name
	l[kubelettypes.KubernetesPodNamespaceLabel] = pod.Namespace
	l[kubelettypes.KubernetesPodUIDLabel] = string(pod.UID)
	return l
}

func containerLabels(pod *v1.Pod, name string) map[string]string {
	return map[string]string{
		kubelettypes.KubernetesPodNameLabel:       pod.Name,
		kubelettypes.KubernetesPodNamespaceLabel:  pod.Namespace,
		kubelettypes.KubernetesPodUIDLabel:        string(pod.UID),
		kubelettypes.KubernetesContainerNameLabel: name,
	}
}

func containerAnnotations(in ContainerInput) map[string]string {
	pod, c := in.Pod, in.Container
	a := map[string]string{}
	maps.Copy(a, in.Allocation.Annotations)
	maps.Copy(a, map[string]string{
		annotationHash:              podloop.ContainerHash(c),
		annotationRestartCount:      strconv.Itoa(in.Attempt),
		annotationTerminationPath:   c.TerminationMessagePath,
		AnnotationTerminationPolicy: string(c.TerminationMessagePolicy),
	})
	if g := pod.DeletionGracePeriodSeconds; g != nil {
		a[annotationPodDeletionGrace] = strconv.FormatInt(*g, 10)
	}
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		a[annotationPodGrace] = strconv.FormatInt(*g, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		if b, err := json.Marshal(c.Lifecycle.PreStop); err == nil {
			a[annotationPreStop] = string(b)
		}
	}
	if len(c.Ports) > 0 {
		if b, err := json.Marshal(c.Ports); err == nil {
			a[annotationPorts] = string(b)
		}
	}
	return a
}
