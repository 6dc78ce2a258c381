package control

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/balsahq/balsa/control/fastread"
	"github.com/balsahq/balsa/control/kinds"
)

// newFastReads makes what answers reads from stored bytes. A kind is asked for by the name of its resource and stored by
// that of its type.
func newFastReads(set *kinds.Set) (*fastread.Handler, error) {
	var all []fastread.Kind
	var failed error
	set.Each(func(r *kinds.Row, gv schema.GroupVersion, store *genericregistry.Store) {
		types, _, err := legacyscheme.Scheme.ObjectKinds(r.Types.New())
		if err != nil {
			failed = err
			return
		}
		all = append(all, fastread.Kind{
			Resource: gv.WithResource(r.Resource), Kind: gv.WithKind(types[0].Kind), Store: store, Scheme: legacyscheme.Scheme,
		})
	})
	return fastread.New(all, fastread.DefaultBudget, codecs), failed
}
