package node

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/node/userns"
)

// ownUsers reports whether the pod asks for a user namespace of its own.
func ownUsers(pod *v1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }

// userNamespace is the user namespace of a pod: the host's, or one with IDs of its own. A pod that asks for its own never
// gets the host's: where the runtime cannot make one, this is an error.
func (a *Agent) userNamespace(pod *v1.Pod, handler string) (*runtimeapi.UserNamespace, error) {
	if !ownUsers(pod) {
		return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}, nil
	}
	a.mu.Lock()
	can := a.handlers[handler].GetUserNamespaces()
	a.mu.Unlock()
	switch {
	case !can && handler == "":
		return nil, errors.New("can't set `spec.hostUsers: false`, runtime does not support user namespaces")
	case !can:
		return nil, fmt.Errorf("can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user namespaces", handler)
	}
	ids, err := a.users.Take(pod.UID)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: idMapping(ids), Gids: idMapping(ids)}, nil
}

func idMapping(r userns.Range) []*runtimeapi.IDMapping {
	return []*runtimeapi.IDMapping{{HostId: r.First, ContainerId: 0, Length: userns.PerPod}}
}

// mapOwners has the files of mounts appear in a user namespace with the owners they have on the host. users may be
// nil, which means the host's user namespace, as in CRI.
func mapOwners(mounts []*runtimeapi.Mount, users *runtimeapi.UserNamespace) {
	if users == nil || users.Mode != runtimeapi.NamespaceMode_POD { // POD is 0: GetMode of nil says POD
		return
	}
	for _, m := range mounts {
		m.UidMappings, m.GidMappings = users.Uids, users.Gids
	}
}
