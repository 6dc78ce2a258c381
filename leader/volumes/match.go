package volumes

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// The annotations by which this controller, kubectl and external provisioners understand each other.
const (
	annBindCompleted   = "pv.kubernetes.io/bind-completed"
	annBoundByUs       = "pv.kubernetes.io/bound-by-controller"
	annProvisionedBy   = "pv.kubernetes.io/provisioned-by"
	annProvisioner     = "volume.kubernetes.io/storage-provisioner"
	annProvisionerBeta = "volume.beta.kubernetes.io/storage-provisioner"
	annSelectedNode    = "volume.kubernetes.io/selected-node"
	annClass           = v1.BetaStorageClassAnnotation

	annDefaultClass     = "storageclass.kubernetes.io/is-default-class"
	annDefaultClassBeta = "storageclass.beta.kubernetes.io/is-default-class"

	noProvisioner = "kubernetes.io/no-provisioner"
)

func className(c *v1.PersistentVolumeClaim) string {
	if name, ok := c.Annotations[annClass]; ok {
		return name
	}
	if c.Spec.StorageClassName != nil {
		return *c.Spec.StorageClassName
	}
	return ""
}

func volumeClass(v *v1.PersistentVolume) string {
	if name, ok := v.Annotations[annClass]; ok {
		return name
	}
	return v.Spec.StorageClassName
}

func modeOf(m *v1.PersistentVolumeMode) v1.PersistentVolumeMode {
	if m == nil {
		return v1.PersistentVolumeFilesystem
	}
	return *m
}

func requested(c *v1.PersistentVolumeClaim) *resource.Quantity {
	q := c.Spec.Resources.Requests[v1.ResourceStorage]
	return &q
}

// asksForMore reports whether a bound claim asks for more than its volume has given it.
func asksForMore(c *v1.PersistentVolumeClaim) bool {
	has, known := c.Status.Capacity[v1.ResourceStorage]
	return known && c.Status.Phase == v1.ClaimBound && c.DeletionTimestamp == nil && requested(c).Cmp(has) > 0
}

// attributesClass is the VolumeAttributesClass that is named; "" for none.
func attributesClass(name *string) string {
	if name == nil {
		return ""
	}
	return *name
}

// classless reports whether a claim waits for a default class to come: one that asks for no class by name "" does not.
func classless(c *v1.PersistentVolumeClaim) bool {
	_, annotated := c.Annotations[annClass]
	return c.Spec.StorageClassName == nil && !annotated && c.Spec.VolumeName == ""
}

// defaultClass is the class of claims that name none: of several the newest, of two equally new ones the first by name,
// as admission chooses for new claims.
func defaultClass(all []*storagev1.StorageClass) (best *storagev1.StorageClass) {
	for _, c := range all {
		if c.Annotations[annDefaultClass] != "true" && c.Annotations[annDefaultClassBeta] != "true" {
			continue
		}
		if best == nil || best.CreationTimestamp.Before(&c.CreationTimestamp) ||
			c.CreationTimestamp.Equal(&best.CreationTimestamp) && c.Name < best.Name {
			best = c
		}
	}
	return best
}

// boundTo reports whether the volume names this claim; a reference without a UID is a reservation by name.
func boundTo(v *v1.PersistentVolume, c *v1.PersistentVolumeClaim) bool {
	r := v.Spec.ClaimRef
	return r != nil && r.Namespace == c.Namespace && r.Name == c.Name && (r.UID == "" || r.UID == c.UID)
}

// suits reports whether a volume can serve a claim, bound or not.
func suits(v *v1.PersistentVolume, c *v1.PersistentVolumeClaim) bool {
	size, want := v.Spec.Capacity[v1.ResourceStorage], c.Spec.Resources.Requests[v1.ResourceStorage]
	if size.Cmp(want) < 0 || modeOf(v.Spec.VolumeMode) != modeOf(c.Spec.VolumeMode) || volumeClass(v) != className(c) ||
		attributesClass(v.Spec.VolumeAttributesClassName) != attributesClass(c.Spec.VolumeAttributesClassName) {
		return false
	}
	for _, m := range c.Spec.AccessModes {
		if !slices.Contains(v.Spec.AccessModes, m) {
			return false
		}
	}
	if c.Spec.Selector == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(c.Spec.Selector)
	return err == nil && selector.Matches(labels.Set(v.Labels))
}

// choose finds the volume for a claim: the one reserved for it, else the smallest that suits and is free. Ties go by name.
func choose(c *v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume) *v1.PersistentVolume {
	var best *v1.PersistentVolume
	for _, v := range volumes {
		if v.DeletionTimestamp != nil {
			continue
		}
		if boundTo(v, c) && (v.Spec.ClaimRef.UID == c.UID || suits(v, c)) {
			return v
		}
		if v.Spec.ClaimRef != nil || v.Status.Phase != v1.VolumeAvailable && v.Status.Phase != "" && v.Status.Phase != v1.VolumePending || !suits(v, c) {
			continue
		}
		if best == nil || smaller(v, best) {
			best = v
		}
	}
	return best
}

func smaller(a, b *v1.PersistentVolume) bool {
	x, y := a.Spec.Capacity[v1.ResourceStorage], b.Spec.Capacity[v1.ResourceStorage]
	if n := x.Cmp(y); n != 0 {
		return n < 0
	}
	return a.Name < b.Name
}

// waits reports whether the class leaves binding to the scheduler, which has not chosen a node yet.
func waits(c *v1.PersistentVolumeClaim, class *storagev1.StorageClass) bool {
	return class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer &&
		c.Annotations[annSelectedNode] == ""
}

// reclaimAction is what happens to a volume whose claim is gone.
type reclaimAction uint8

const (
	keep reclaimAction = iota
	release
	remove
)

// reclaimActionOf: volumes that an external provisioner made are its to delete; this controller only says they are released.
func reclaimActionOf(v *v1.PersistentVolume) reclaimAction {
	switch {
	case v.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete && v.Spec.CSI == nil && v.Annotations[annProvisionedBy] == "" && v.Spec.HostPath != nil:
		return remove
	case v.Status.Phase != v1.VolumeReleased && v.Status.Phase != v1.VolumeFailed:
		return release
	}
	return keep
}
