package criconfig

import (
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/node/userns"
)

// HasUserNamespace reports whether the pod asks for its own user namespace (hostUsers: false).
func HasUserNamespace(pod *v1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }

func IDMapping(r userns.Range) []*runtimeapi.IDMapping {
	return []*runtimeapi.IDMapping{{HostId: r.First, ContainerId: 0, Length: userns.PerPod}}
}

// mapOwners maps the owners of files in mounts into a user namespace, so that they are the same there as on the host. users
// may be nil, which means the host's user namespace, as in CRI.
func mapOwners(mounts []*runtimeapi.Mount, users *runtimeapi.UserNamespace) {
	if users == nil || users.Mode != runtimeapi.NamespaceMode_POD { // POD is 0: GetMode of nil says POD
		return
	}
	for _, m := range mounts {
		m.UidMappings, m.GidMappings = users.Uids, users.Gids
	}
}
