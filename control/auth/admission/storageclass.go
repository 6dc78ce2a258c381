package admission

import (
	"context"
	"errors"
	"io"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/client-go/informers"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// DefaultStorageClass sets the default class in claims that name none. Of several defaults it takes the newest, of
// equally new ones the first by name. It replaces upstream's plugin of that name, which imports the volume plugins.
const defaultClassName = "DefaultStorageClass"

// Either annotation makes a class the default; the second is the beta version's.
const (
	defaultClassAnnotation     = "storageclass.kubernetes.io/is-default-class"
	defaultClassAnnotationBeta = "storageclass.beta.kubernetes.io/is-default-class"
)

type defaultClass struct {
	*admission.Handler
	classes storagelisters.StorageClassLister
}

func registerDefaultClass(plugins *admission.Plugins) {
	plugins.Register(defaultClassName, func(io.Reader) (admission.Interface, error) {
		return &defaultClass{Handler: admission.NewHandler(admission.Create)}, nil
	})
}

var _ initializer.WantsExternalKubeInformerFactory = (*defaultClass)(nil)

// SetExternalKubeInformerFactory implements initializer.WantsExternalKubeInformerFactory.
func (d *defaultClass) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	d.classes = f.Storage().V1().StorageClasses().Lister()
}

// Admit implements admission.MutationInterface.
func (d *defaultClass) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	claim, ok := a.GetObject().(*api.PersistentVolumeClaim)
	if !ok || a.GetSubresource() != "" || claim.Spec.StorageClassName != nil {
		return nil
	}
	if _, beta := claim.Annotations[api.BetaStorageClassAnnotation]; beta {
		return nil
	}
	all, err := d.classes.List(labels.Everything())
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if c := newestDefault(all); c != nil {
		claim.Spec.StorageClassName = &c.Name
	}
	return nil
}

func newestDefault(all []*storagev1.StorageClass) (best *storagev1.StorageClass) {
	for _, c := range all {
		if c.Annotations[defaultClassAnnotation] != "true" && c.Annotations[defaultClassAnnotationBeta] != "true" {
			continue
		}
		if best == nil || best.CreationTimestamp.Before(&c.CreationTimestamp) ||
			(best.CreationTimestamp.Equal(&c.CreationTimestamp) && c.Name < best.Name) {
			best = c
		}
	}
	return best
}

// ValidateInitialization implements admission.InitializationValidator.
func (d *defaultClass) ValidateInitialization() error {
	if d.classes == nil {
		return errors.New("DefaultStorageClass has no lister")
	}
	return nil
}
