package node

import (
	"encoding/json"
	"maps"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
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

// instanceOf reads a container's status as the runtime tells it.
func instanceOf(s *runtimeapi.ContainerStatus, sandboxID string) *podloop.Instance {
	in := &podloop.Instance{
		ID: s.Id, SandboxID: sandboxID, Name: s.Labels[kubelettypes.KubernetesContainerNameLabel],
		Attempt: int(s.GetMetadata().GetAttempt()), Created: unixNano(s.CreatedAt),
		Started: unixNano(s.StartedAt), Finished: unixNano(s.FinishedAt),
		ExitCode: s.ExitCode, Reason: s.Reason, Message: s.Message,
		Hash: s.Annotations[annHash], LogPath: s.LogPath, ImageID: s.ImageRef, Image: s.GetImage().GetImage(),
	}
	if in.Name == "" {
		in.Name = s.GetMetadata().GetName()
	}
	if n, err := strconv.Atoi(s.Annotations[annRestartCount]); err == nil {
		in.Attempt = n
	}
	if u := s.GetImage().GetUserSpecifiedImage(); u != "" {
		in.Image = u
	}
	if s.ImageId != "" {
		in.ImageID = firstNonEmpty(s.ImageRef, s.ImageId)
	}
	switch s.State {
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		in.State = podloop.StateRunning
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		in.State = podloop.StateExited
		if in.Finished.IsZero() {
			in.Finished = in.Created
		}
		if in.Started.IsZero() {
			in.Started = in.Finished
		}
	}
	if u := s.GetUser().GetLinux(); u != nil {
		in.User = &v1.ContainerUser{Linux: &v1.LinuxContainerUser{UID: u.Uid, GID: u.Gid, SupplementalGroups: u.SupplementalGroups}}
	}
	if path := s.Annotations[annTerminationPath]; path != "" {
		for _, m := range s.Mounts {
			if m.ContainerPath == path {
				in.TerminationMessageFile = m.HostPath
			}
		}
	}
	return in
}

func firstNonEmpty(ss ...string) string {
	for _, s := range ss {
		if s != "" {
			return s
		}
	}
	return ""
}

func unixNano(n int64) time.Time {
	if n <= 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}

func sandboxOf(s *runtimeapi.PodSandboxStatus) *podloop.Sandbox {
	b := &podloop.Sandbox{
		ID: s.Id, Handler: s.RuntimeHandler, Attempt: s.GetMetadata().GetAttempt(), Created: unixNano(s.CreatedAt),
		Ready: s.State == runtimeapi.PodSandboxState_SANDBOX_READY,
	}
	if n := s.GetNetwork(); n.GetIp() != "" {
		b.IPs = append(b.IPs, n.Ip)
		for _, a := range n.AdditionalIps {
			b.IPs = append(b.IPs, a.Ip)
		}
	}
	return b
}
