package criconfig

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/node/userns"
)

func TestOnlyAUserNamespaceOfThePodMapsTheOwnersOfMounts(t *testing.T) {
	ids := IDMapping(userns.Range{First: 1 << 16})
	for name, c := range map[string]struct {
		users  *runtimeapi.UserNamespace
		mapped bool
	}{
		"none":       {nil, false},
		"the host's": {&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}, false},
		"the pod's":  {&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}, true},
	} {
		m := &runtimeapi.Mount{}
		mapOwners([]*runtimeapi.Mount{m}, c.users)
		if got := len(m.UidMappings) == 1 && len(m.GidMappings) == 1; got != c.mapped || !c.mapped && len(m.UidMappings)+len(m.GidMappings) > 0 {
			t.Errorf("%s: %+v", name, m)
		}
	}
}
