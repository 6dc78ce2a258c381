package node

import (
	"encoding/json"
	"maps"
	"strconv"

	v1 "k8s.io/api/core/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/balsahq/balsa/node/podloop"
)

// Annotations of CRI containers that carry what the agent must know again
// after a restart; the names are the upstream kubelet's.
const (
	annHash               = "io.kubernetes.container.hash"
	annRestartCount       = "io.kubernetes.container.restartCount"
	annTerminationPath    = "io.kubernetes.container.terminationMessagePath"
	annTerminationPolicy  = "io.kubernetes.container.terminationMessagePolicy"
	annPodDeletionGrace   = "io.kubernetes.pod.deletionGracePeriod"
	annPodGrace           = "io.kubernetes.pod.terminationGracePeriod"
	annPreStop            = "io.kubernetes.container.preStopHandler"
	annPorts              = "io.kubernetes.container.ports"
	dirMode               = 0o755
	terminationLogMode    = 0o666
	maxTerminationMessage = 4096
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

func containerAnnotations(pod *v1.Pod, c *v1.Container, attempt int) map[string]string {
	a := map[string]string{
		annHash:              podloop.ContainerHash(c),
		annRestartCount:      strconv.Itoa(attempt),
		annTerminationPath:   c.TerminationMessagePath,
		annTerminationPolicy: string(c.TerminationMessagePolicy),
	}
	if g := pod.DeletionGracePeriodSeconds; g != nil {
		a[annPodDeletionGrace] = strconv.FormatInt(*g, 10)
	}
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		a[annPodGrace] = strconv.FormatInt(*g, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		if b, err := json.Marshal(c.Lifecycle.PreStop); err == nil {
			a[annPreStop] = string(b)
		}
	}
	if len(c.Ports) > 0 {
		if b, err := json.Marshal(c.Ports); err == nil {
			a[annPorts] = string(b)
		}
	}
	return a
}
