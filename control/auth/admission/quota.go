package admission

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/admission"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"

	"github.com/balsahq/balsa/control/auth/listers"
)

// unlimited is the ResourceQuota plugin, called only for namespaces that have a quota. The plugin decides about the
// objects of a namespace one after the other in one goroutine. Without this wrapper each write would need two goroutine
// switches to learn that there is no quota.
type unlimited struct {
	admission.ValidationInterface
	quotas *listers.Indexer
	// classes returns the DeviceClasses that stand for an extended resource, to the evaluator of claims.
	classes func() int
}

// quotaConfiguration is upstream's, with an evaluator of ResourceClaims that charges devices by DeviceClass.
func (b *builder) quotaConfiguration() (quota.Configuration, error) {
	cfg, err := quotainstall.NewQuotaConfigurationForAdmission(b.factory, served(b.cfg.Enabled))
	if err != nil || b.cfg.Enabled != nil && !b.cfg.Enabled(resourceapi.SchemeGroupVersion.WithResource("resourceclaims")) {
		return cfg, err
	}
	classes := extendedresourcecache.NewExtendedResourceCache(klog.FromContext(b.ctx))
	b.factory.OnDeviceClass(classes)
	// Without a lister of pods, no claim counts as one that a scheduler made for a pod's extended resources. Nothing
	// here makes such claims, and a claim that a user writes is charged in full.
	claims := core.NewResourceClaimEvaluator(nil, classes, nil, nil)
	return generic.NewConfiguration(append(cfg.Evaluators(), claims), cfg.IgnoredResources()), nil
}

// Validate implements admission.ValidationInterface.
func (u unlimited) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	limited := false
	u.quotas.EachKey(a.GetNamespace(), func(string, int64) bool {
		limited = true
		return false
	})
	if !limited {
		return nil
	}
	if a.GetResource().Group == resourceapi.GroupName {
		u.classes()
	}
	return u.ValidationInterface.Validate(ctx, a, o)
}
