package kinds

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/resource"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/resource/deviceclass"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaim"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate"
	"k8s.io/kubernetes/pkg/registry/resource/resourceslice"
)

func (s *Set) admissionRows() []Row {
	const group, category = admissionregistration.GroupName, "api-extensions"
	authz, kinds, policies := s.Deps.Authorizer, s.Deps.Resources, policyGetter{s}
	validating := validatingadmissionpolicy.NewStrategy(authz, kinds)
	return []Row{{
		Group: group, Resource: "validatingwebhookconfigurations", Singular: "validatingwebhookconfiguration", Category: category,
		Types:    typesOf[admissionregistration.ValidatingWebhookConfiguration, admissionregistration.ValidatingWebhookConfigurationList](),
		Strategy: validatingwebhookconfiguration.Strategy,
	}, {
		Group: group, Resource: "mutatingwebhookconfigurations", Singular: "mutatingwebhookconfiguration", Category: category,
		Types:    typesOf[admissionregistration.MutatingWebhookConfiguration, admissionregistration.MutatingWebhookConfigurationList](),
		Strategy: mutatingwebhookconfiguration.Strategy,
	}, {
		Group: group, Resource: "validatingadmissionpolicies", Singular: "validatingadmissionpolicy", Category: category,
		Types:    typesOf[admissionregistration.ValidatingAdmissionPolicy, admissionregistration.ValidatingAdmissionPolicyList](),
		Strategy: validating, Views: status(validatingadmissionpolicy.NewStatusStrategy(validating)),
	}, {
		Group: group, Resource: "validatingadmissionpolicybindings", Singular: "validatingadmissionpolicybinding", Category: category,
		Types:    typesOf[admissionregistration.ValidatingAdmissionPolicyBinding, admissionregistration.ValidatingAdmissionPolicyBindingList](),
		Strategy: validatingadmissionpolicybinding.NewStrategy(authz, policies, kinds),
	}, {
		Group: group, Resource: "mutatingadmissionpolicies", Singular: "mutatingadmissionpolicy", Category: category,
		Types:    typesOf[admissionregistration.MutatingAdmissionPolicy, admissionregistration.MutatingAdmissionPolicyList](),
		Strategy: mutatingadmissionpolicy.NewStrategy(authz, kinds),
	}, {
		Group: group, Resource: "mutatingadmissionpolicybindings", Singular: "mutatingadmissionpolicybinding", Category: category,
		Types:    typesOf[admissionregistration.MutatingAdmissionPolicyBinding, admissionregistration.MutatingAdmissionPolicyBindingList](),
		Strategy: mutatingadmissionpolicybinding.NewStrategy(authz, policies, kinds),
	}}
}

// policyGetter reads the policy that a binding names.
type policyGetter struct{ set *Set }

// GetValidatingAdmissionPolicy reads one validating policy.
func (g policyGetter) GetValidatingAdmissionPolicy(ctx context.Context, name string) (*admissionregistration.ValidatingAdmissionPolicy, error) {
	obj, err := g.set.Store(admissionregistration.GroupName, "validatingadmissionpolicies").Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*admissionregistration.ValidatingAdmissionPolicy), nil
}

// GetMutatingAdmissionPolicy reads one mutating policy.
func (g policyGetter) GetMutatingAdmissionPolicy(ctx context.Context, name string) (*admissionregistration.MutatingAdmissionPolicy, error) {
	obj, err := g.set.Store(admissionregistration.GroupName, "mutatingadmissionpolicies").Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*admissionregistration.MutatingAdmissionPolicy), nil
}

func (s *Set) deviceRows() []Row {
	const group = resource.GroupName
	claims := resourceclaim.NewStrategy(s.Deps.Namespaces, s.Deps.Authorizer)
	return []Row{{
		Group: group, Resource: "deviceclasses", Singular: "deviceclass",
		Types: typesOf[resource.DeviceClass, resource.DeviceClassList](), Strategy: deviceclass.Strategy, ReturnDeleted: true,
	}, {
		Group: group, Resource: "resourceclaims", Singular: "resourceclaim",
		Types: typesOf[resource.ResourceClaim, resource.ResourceClaimList](), Strategy: claims,
		Views: status(resourceclaim.NewStatusStrategy(claims)), Attrs: resourceclaim.GetAttrs, ReturnDeleted: true,
	}, {
		Group: group, Resource: "resourceclaimtemplates", Singular: "resourceclaimtemplate",
		Types:    typesOf[resource.ResourceClaimTemplate, resource.ResourceClaimTemplateList](),
		Strategy: resourceclaimtemplate.NewStrategy(s.Deps.Namespaces), Attrs: resourceclaimtemplate.GetAttrs, ReturnDeleted: true,
	}, {
		Group: group, Resource: "resourceslices", Singular: "resourceslice",
		Types: typesOf[resource.ResourceSlice, resource.ResourceSliceList](), Strategy: resourceslice.Strategy,
		Attrs: resourceslice.GetAttrs, Triggers: resourceslice.TriggerFunc, Indexers: resourceslice.Indexers, ReturnDeleted: true,
	}}
}
