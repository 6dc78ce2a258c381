package kinds

import (
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	"k8s.io/kube-aggregator/pkg/registry/apiservice"
	apiservicestorage "k8s.io/kube-aggregator/pkg/registry/apiservice/etcd"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Upstream serves this group with a server and a scheme of its own. Here it is one more row.
func init() { install.Install(legacyscheme.Scheme) }

func aggregationRows() []Row {
	return []Row{{
		Group: apiregistration.GroupName, Resource: "apiservices", Singular: "apiservice", Category: "api-extensions",
		Types:    typesOf[apiregistration.APIService, apiregistration.APIServiceList](),
		Strategy: apiservice.NewStrategy(legacyscheme.Scheme), Attrs: apiservice.GetAttrs,
		Views: status(apiservice.NewStatusStrategy(legacyscheme.Scheme)),
		// The hook takes the columns from upstream's storage, which is otherwise not used.
		Hook: func(store *genericregistry.Store) { store.TableConvertor = &apiservicestorage.REST{} },
	}}
}
