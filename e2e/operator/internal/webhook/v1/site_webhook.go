// Package v1 defaults and validates Sites where a schema cannot.
package v1

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	webv1 "example.com/site-operator/api/v1"
)

// SetupSiteWebhookWithManager serves /mutate-…, /validate-… and /convert.
func SetupSiteWebhookWithManager(mgr ctrl.Manager, defaultImage string) error {
	return ctrl.NewWebhookManagedBy(mgr, &webv1.Site{}).
		WithDefaulter(&defaulter{image: defaultImage}).
		WithValidator(&validator{reader: mgr.GetAPIReader()}).
		Complete()
}

// +kubebuilder:webhook:path=/mutate-web-example-com-v1-site,mutating=true,failurePolicy=fail,sideEffects=None,groups=web.example.com,resources=sites,verbs=create;update,versions=v1,name=msite-v1.kb.io,admissionReviewVersions=v1

type defaulter struct{ image string }

// Default fills in the image and the host.
func (d *defaulter) Default(_ context.Context, site *webv1.Site) error {
	if site.Spec.Image == "" {
		site.Spec.Image = d.image
	}
	if site.Spec.Host == "" {
		site.Spec.Host = site.Name + "." + site.Namespace + ".sites.example.com"
	}
	return nil
}

// +kubebuilder:webhook:path=/validate-web-example-com-v1-site,mutating=false,failurePolicy=fail,sideEffects=None,groups=web.example.com,resources=sites,verbs=create;update;delete,versions=v1,name=vsite-v1.kb.io,admissionReviewVersions=v1

type validator struct{ reader client.Reader }

// ValidateCreate refuses a host that another Site has.
func (v *validator) ValidateCreate(ctx context.Context, site *webv1.Site) (admission.Warnings, error) {
	var others webv1.SiteList
	if err := v.reader.List(ctx, &others, client.MatchingFields{"spec.host": site.Spec.Host}); err != nil {
		return nil, err
	}
	for _, other := range others.Items {
		if other.Namespace != site.Namespace || other.Name != site.Name {
			fault := field.Invalid(field.NewPath("spec", "host"), site.Spec.Host, fmt.Sprintf("is the host of %s/%s", other.Namespace, other.Name))
			return nil, apierrors.NewInvalid(schema.GroupKind{Group: webv1.GroupVersion.Group, Kind: "Site"}, site.Name, field.ErrorList{fault})
		}
	}
	return warnings(site), nil
}

// ValidateUpdate refuses nothing: the schema's rules say what may change.
func (v *validator) ValidateUpdate(_ context.Context, _, site *webv1.Site) (admission.Warnings, error) {
	return warnings(site), nil
}

// ValidateDelete refuses to delete what is protected.
func (v *validator) ValidateDelete(_ context.Context, site *webv1.Site) (admission.Warnings, error) {
	if site.Annotations[webv1.ProtectedAnnotation] == "true" {
		return nil, fmt.Errorf("site %s is protected: remove the annotation %s first", site.Name, webv1.ProtectedAnnotation)
	}
	return nil, nil
}

func warnings(site *webv1.Site) admission.Warnings {
	name := site.Spec.Image[strings.LastIndex(site.Spec.Image, "/")+1:]
	if !strings.Contains(name, ":") || strings.HasSuffix(name, ":latest") {
		return admission.Warnings{"spec.image has no version: what runs will change without you"}
	}
	return nil
}
