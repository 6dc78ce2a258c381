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

// unlimited is the ResourceQuota plugin, asked about namespaces that have a quota. It has one goroutine decide about all
// objects of a namespace, one after the other, and so costs each of them two changes of goroutine to learn that there is
// no quota.
type unlimited struct {
	admission.ValidationInterface
	quotas *listers.Indexer
	// classes tells the evaluator of claims which DeviceClasses stand for an extended resource.
	classes func() int
}

// quotaConfiguration is upstream's, with the evaluator of ResourceClaims: it charges devices per DeviceClass.
func (b *builder) quotaConfiguration() (quota.Configuration, error) {
	cfg, err := quotainstall.NewQuotaConfigurationForAdmission(b.factory, served(b.cfg.Enabled))
	if err != nil || b.cfg.Enabled != nil && !b.cfg.Enabled(resourceapi.SchemeGroupVersion.WithResource("resourceclaims")) {
		return cfg, err
	}
	classes := extendedresourcecache.NewExtendedResourceCache(klog.FromContext(b.ctx))
	b.factory.OnDeviceClass(classes)
	// Without a lister of pods no claim counts as one that a scheduler made for a pod's extended resources: nothing here
	// makes such claims, and who writes one by hand pays for it in full.
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
