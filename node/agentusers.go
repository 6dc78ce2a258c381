package node

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/node/criconfig"
)

// userNamespace is the user namespace of a pod: the host's, or one with IDs of its own. A pod that asks for its own never
// gets the host's: where the runtime cannot make one, this is an error.
func (a *Agent) userNamespace(pod *v1.Pod, handler string) (*runtimeapi.UserNamespace, error) {
	if !criconfig.HasUserNamespace(pod) {
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
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: criconfig.IDMapping(ids), Gids: criconfig.IDMapping(ids)}, nil
}
