package admission

import (
	"context"
	"io"
	"slices"

	"k8s.io/apiserver/pkg/admission"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/storage"
)

// StorageObjectInUseProtection gives new claims, volumes and VolumeAttributesClasses the finalizers that keep them
// while they are in use (KEP-498, KEP-3751). It replaces upstream's plugin of that name, which imports the volume
// plugins.
const protectName = "StorageObjectInUseProtection"

// The names of the finalizers are part of the API.
const (
	claimFinalizer  = "kubernetes.io/pvc-protection"
	volumeFinalizer = "kubernetes.io/pv-protection"
	classFinalizer  = "kubernetes.io/vac-protection"
)

type protect struct{ *admission.Handler }

func registerProtect(plugins *admission.Plugins) {
	plugins.Register(protectName, func(io.Reader) (admission.Interface, error) {
		return protect{admission.NewHandler(admission.Create)}, nil
	})
}

// Admit implements admission.MutationInterface.
func (protect) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	switch o := a.GetObject().(type) {
	case *api.PersistentVolumeClaim:
		o.Finalizers = with(o.Finalizers, claimFinalizer)
	case *api.PersistentVolume:
		o.Finalizers = with(o.Finalizers, volumeFinalizer)
	case *storage.VolumeAttributesClass:
		o.Finalizers = with(o.Finalizers, classFinalizer)
	}
	return nil
}

func with(in []string, s string) []string {
	if slices.Contains(in, s) {
		return in
	}
	return append(in, s)
}
