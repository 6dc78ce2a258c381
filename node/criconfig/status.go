package criconfig

import (
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/balsahq/balsa/node/podloop"
)

// InstanceOf translates the runtime's status of a container.
func InstanceOf(s *runtimeapi.ContainerStatus, sandboxID string) *podloop.Instance {
	in := &podloop.Instance{
		ID: s.Id, SandboxID: sandboxID, Name: s.Labels[kubelettypes.KubernetesContainerNameLabel],
		Attempt: int(s.GetMetadata().GetAttempt()), Created: timeOfNanos(s.CreatedAt),
		Started: timeOfNanos(s.StartedAt), Finished: timeOfNanos(s.FinishedAt),
		ExitCode: s.ExitCode, Reason: s.Reason, Message: s.Message,
		Hash: s.Annotations[annotationHash], LogPath: s.LogPath, ImageID: s.ImageRef, Image: s.GetImage().GetImage(),
	}
	if in.Name == "" {
		in.Name = s.GetMetadata().GetName()
	}
	if n, err := strconv.Atoi(s.Annotations[annotationRestartCount]); err == nil {
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
	if path := s.Annotations[annotationTerminationPath]; path != "" {
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

func timeOfNanos(n int64) time.Time {
	if n <= 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}

func SandboxOf(s *runtimeapi.PodSandboxStatus) *podloop.Sandbox {
	b := &podloop.Sandbox{
		ID: s.Id, Handler: s.RuntimeHandler, Attempt: s.GetMetadata().GetAttempt(), Created: timeOfNanos(s.CreatedAt),
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
