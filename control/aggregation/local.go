package aggregation

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
)

// priority orders a group among groups, and a version within its group, highest first.
type priority struct{ group, version int32 }

// priorities are kube-apiserver's (cmd/kube-apiserver/app/aggregator.go, pkg/controlplane/apiserver/aggregator.go),
// including those of groups that may be enabled later.
var priorities = map[schema.GroupVersion]priority{
	{Version: "v1"}:                       {18000, 1},
	{Group: "apps", Version: "v1"}:        {17800, 15},
	{Group: "batch", Version: "v1"}:       {17400, 15},
	{Group: "policy", Version: "v1"}:      {17100, 15},
	{Group: "autoscaling", Version: "v1"}: {17500, 15},
	{Group: "autoscaling", Version: "v2"}: {17500, 30},

	{Group: "events.k8s.io", Version: "v1"}:                      {17750, 15},
	{Group: "authentication.k8s.io", Version: "v1"}:              {17700, 15},
	{Group: "authentication.k8s.io", Version: "v1beta1"}:         {17700, 9},
	{Group: "authentication.k8s.io", Version: "v1alpha1"}:        {17700, 1},
	{Group: "authorization.k8s.io", Version: "v1"}:               {17600, 15},
	{Group: "certificates.k8s.io", Version: "v1"}:                {17300, 15},
	{Group: "certificates.k8s.io", Version: "v1beta1"}:           {17300, 9},
	{Group: "certificates.k8s.io", Version: "v1alpha1"}:          {17300, 1},
	{Group: "networking.k8s.io", Version: "v1"}:                  {17200, 15},
	{Group: "networking.k8s.io", Version: "v1beta1"}:             {17200, 9},
	{Group: "rbac.authorization.k8s.io", Version: "v1"}:          {17000, 15},
	{Group: "storage.k8s.io", Version: "v1"}:                     {16800, 15},
	{Group: "storage.k8s.io", Version: "v1beta1"}:                {16800, 9},
	{Group: "storage.k8s.io", Version: "v1alpha1"}:               {16800, 1},
	{Group: "apiextensions.k8s.io", Version: "v1"}:               {16700, 15},
	{Group: "admissionregistration.k8s.io", Version: "v1"}:       {16700, 15},
	{Group: "admissionregistration.k8s.io", Version: "v1beta1"}:  {16700, 12},
	{Group: "admissionregistration.k8s.io", Version: "v1alpha1"}: {16700, 9},
	{Group: "scheduling.k8s.io", Version: "v1"}:                  {16600, 15},
	{Group: "scheduling.k8s.io", Version: "v1alpha2"}:            {16600, 2},
	{Group: "coordination.k8s.io", Version: "v1"}:                {16500, 15},
	{Group: "coordination.k8s.io", Version: "v1beta1"}:           {16500, 13},
	{Group: "coordination.k8s.io", Version: "v1alpha2"}:          {16500, 12},
	{Group: "node.k8s.io", Version: "v1"}:                        {16300, 15},
	{Group: "discovery.k8s.io", Version: "v1"}:                   {16200, 15},
	{Group: "resource.k8s.io", Version: "v1"}:                    {16200, 21},
	{Group: "resource.k8s.io", Version: "v1beta2"}:               {16200, 15},
	{Group: "resource.k8s.io", Version: "v1beta1"}:               {16200, 9},
	{Group: "resource.k8s.io", Version: "v1alpha3"}:              {16200, 1},
	{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"}:       {16100, 21},
	{Group: "internal.apiserver.k8s.io", Version: "v1alpha1"}:    {16000, 9},
	{Group: "storagemigration.k8s.io", Version: "v1beta1"}:       {15800, 9},
}

// Custom resources come after the built-in groups, ordered by name and version.
var customPriority = priority{1000, 100}

// onStart is upstream's mark of APIServices that are restored only when a server starts. After that users may edit
// them.
const onStart = "onstart"

// Builtin returns the APIServices of the groups that the program serves. As in upstream, their own group has none.
func Builtin(versions []schema.GroupVersion) []*apiregistrationv1.APIService {
	var out []*apiregistrationv1.APIService
	for _, gv := range versions {
		p, ok := priorities[gv]
		if !ok {
			continue
		}
		s := apiService(gv, p)
		s.Labels = map[string]string{autoregister.AutoRegisterManagedLabel: onStart}
		out = append(out, s)
	}
	return out
}

func apiService(gv schema.GroupVersion, p priority) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
		Spec:       apiregistrationv1.APIServiceSpec{Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: p.group, VersionPriority: p.version},
	}
}

// localServices gives upstream's autoregister controller the APIServices that should exist. One goroutine uses it.
type localServices struct {
	keeper      autoregister.AutoAPIServiceRegistration
	definitions func() []*apiextensionsv1.CustomResourceDefinition
	custom      map[schema.GroupVersion]bool
}

func newLocalServices(cfg Config, keeper autoregister.AutoAPIServiceRegistration) *localServices {
	for _, s := range Builtin(cfg.Builtin) {
		keeper.AddAPIServiceToSyncOnStart(s)
	}
	return &localServices{keeper: keeper, definitions: cfg.Definitions, custom: map[schema.GroupVersion]bool{}}
}

// update passes on which versions of custom resources were added or removed.
func (l *localServices) update() {
	now := servedBy(l.definitions())
	for gv := range now {
		if !l.custom[gv] {
			p, known := priorities[gv] // a definition may serve a version of a built-in group
			if !known {
				p = customPriority
			}
			l.keeper.AddAPIServiceToSync(apiService(gv, p))
		}
	}
	for gv := range l.custom {
		if !now[gv] {
			l.keeper.RemoveAPIServiceToSync(gv.Version + "." + gv.Group)
		}
	}
	l.custom = now
}

func servedBy(definitions []*apiextensionsv1.CustomResourceDefinition) map[schema.GroupVersion]bool {
	out := map[schema.GroupVersion]bool{}
	for _, d := range definitions {
		for _, v := range d.Spec.Versions {
			if v.Served {
				out[schema.GroupVersion{Group: d.Spec.Group, Version: v.Name}] = true
			}
		}
	}
	return out
}

// lateDefinitionGuard is a client that does not delete the APIService of a custom resource whose definition this server
// does not know yet. Another server may have written both, and they arrive here through different watches.
type lateDefinitionGuard struct {
	apiregistrationclient.APIServicesGetter
	newest func(context.Context) ([]*apiextensionsv1.CustomResourceDefinition, error)
}

// APIServices implements APIServicesGetter.
func (c lateDefinitionGuard) APIServices() apiregistrationclient.APIServiceInterface {
	return lateDefinitionGuardClient{c.APIServicesGetter.APIServices(), c.newest}
}

type lateDefinitionGuardClient struct {
	apiregistrationclient.APIServiceInterface
	newest func(context.Context) ([]*apiextensionsv1.CustomResourceDefinition, error)
}

// Delete refuses with a conflict; upstream's controller then waits for the next change.
func (c lateDefinitionGuardClient) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	definitions, err := c.newest(ctx)
	if err != nil {
		return fmt.Errorf("aggregation: definitions of custom resources: %w", err)
	}
	if servedBy(definitions)[helper.APIServiceNameToGroupVersion(name)] {
		return apierrors.NewConflict(apiregistrationv1.Resource("apiservices"), name, fmt.Errorf("its CustomResourceDefinition exists"))
	}
	return c.APIServiceInterface.Delete(ctx, name, options)
}
