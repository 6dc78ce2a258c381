package localvolumes

import (
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

const (
	// Driver is the name of Balsa's own CSI driver, and of the provisioner.
	Driver = "csi.balsa.dev"
	// topologyKey is the label of the node that has a volume.
	topologyKey = "topology.csi.balsa.dev/node"
	// className is the StorageClass that every cluster begins with.
	className = "balsa-local"

	annProvisioner   = "volume.kubernetes.io/storage-provisioner"
	annProvisionedBy = "pv.kubernetes.io/provisioned-by"
	annDefaultClass  = "storageclass.kubernetes.io/is-default-class"
	// finalizer keeps a PersistentVolume until its directory is gone, as external-provisioner's (KEP-2644).
	finalizer = "external-provisioner.volume.kubernetes.io/finalizer"
)

// wanted reports whether a claim waits for a volume of Balsa's driver, and its class lets the volume be made now.
func wanted(c *v1.PersistentVolumeClaim, class *storagev1.StorageClass) bool {
	if c.Spec.VolumeName != "" || c.DeletionTimestamp != nil || c.Annotations[annProvisioner] != Driver || class == nil || class.Provisioner != Driver {
		return false
	}
	return c.Annotations[volume.AnnSelectedNode] != "" || !delayed(class)
}

func delayed(class *storagev1.StorageClass) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// roomiest is the node with the most room of those where the class may provision: for a claim that waits for no pod. It
// is empty when none is known to have enough.
func roomiest(class *storagev1.StorageClass, need resource.Quantity, known []*storagev1.CSIStorageCapacity) (node string) {
	var most *resource.Quantity
	for _, c := range known {
		if c.StorageClassName != class.Name || c.Capacity == nil || c.NodeTopology == nil || c.Capacity.Cmp(need) < 0 {
			continue
		}
		name := c.NodeTopology.MatchLabels[topologyKey]
		if name != "" && allows(class, name) && (most == nil || c.Capacity.Cmp(*most) > 0) {
			node, most = name, c.Capacity
		}
	}
	return node
}

// allows reports whether the class's topologies leave the node in, as far as they are about our label.
func allows(class *storagev1.StorageClass, node string) bool {
	if len(class.AllowedTopologies) == 0 {
		return true
	}
	return slices.ContainsFunc(class.AllowedTopologies, func(t v1.TopologySelectorTerm) bool {
		for _, e := range t.MatchLabelExpressions {
			if e.Key != topologyKey || !slices.Contains(e.Values, node) {
				return false
			}
		}
		return len(t.MatchLabelExpressions) > 0
	})
}

func volumeName(c *v1.PersistentVolumeClaim) string { return "pvc-" + string(c.UID) }

// createRequest asks a node for the volume of a claim.
func createRequest(c *v1.PersistentVolumeClaim, class *storagev1.StorageClass, node string) *csipb.CreateVolumeRequest {
	size := c.Spec.Resources.Requests[v1.ResourceStorage]
	here := []*csipb.Topology{{Segments: map[string]string{topologyKey: node}}}
	r := &csipb.CreateVolumeRequest{
		Name: volumeName(c), CapacityRange: &csipb.CapacityRange{RequiredBytes: size.Value()}, Parameters: class.Parameters,
		AccessibilityRequirements: &csipb.TopologyRequirement{Requisite: here, Preferred: here},
	}
	for _, mode := range c.Spec.AccessModes {
		r.VolumeCapabilities = append(r.VolumeCapabilities, capability(mode, c.Spec.VolumeMode, class.MountOptions))
	}
	if c.Spec.DataSource != nil || c.Spec.DataSourceRef != nil {
		r.VolumeContentSource = &csipb.VolumeContentSource{} // the driver says that it cannot
	}
	return r
}

func capability(mode v1.PersistentVolumeAccessMode, kind *v1.PersistentVolumeMode, options []string) *csipb.VolumeCapability {
	modes := map[v1.PersistentVolumeAccessMode]csipb.VolumeCapability_AccessMode_Mode{
		v1.ReadWriteOnce: csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, v1.ReadWriteOncePod: csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		v1.ReadOnlyMany: csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, v1.ReadWriteMany: csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
	}
	c := &csipb.VolumeCapability{AccessMode: &csipb.VolumeCapability_AccessMode{Mode: modes[mode]}}
	if kind != nil && *kind == v1.PersistentVolumeBlock {
		c.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{MountFlags: options}}
	}
	return c
}

// persistentVolume is the object for a volume that a node has made for a claim.
func persistentVolume(c *v1.PersistentVolumeClaim, class *storagev1.StorageClass, made *csipb.Volume, node string) *v1.PersistentVolume {
	policy := v1.PersistentVolumeReclaimDelete
	if class.ReclaimPolicy != nil {
		policy = *class.ReclaimPolicy
	}
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volumeName(c), Annotations: map[string]string{annProvisionedBy: Driver}},
		Spec: v1.PersistentVolumeSpec{
			Capacity:    v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(made.CapacityBytes, resource.BinarySI)},
			AccessModes: c.Spec.AccessModes, VolumeMode: c.Spec.VolumeMode, MountOptions: class.MountOptions,
			PersistentVolumeReclaimPolicy: policy, StorageClassName: class.Name,
			ClaimRef:               &v1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: Driver, VolumeHandle: made.VolumeId}},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: topologyKey, Operator: v1.NodeSelectorOpIn, Values: []string{node}}}}}}},
		},
	}
	if policy == v1.PersistentVolumeReclaimDelete {
		pv.Finalizers = []string{finalizer}
	}
	return pv
}

// ours reports whether a volume was made by this package.
func ours(v *v1.PersistentVolume) bool {
	return v.Spec.CSI != nil && v.Spec.CSI.Driver == Driver && v.Annotations[annProvisionedBy] == Driver
}

// nodeOf returns the name of the node whose disk has the volume, or "".
func nodeOf(v *v1.PersistentVolume) string {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return ""
	}
	for _, t := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range t.MatchExpressions {
			if e.Key == topologyKey && len(e.Values) == 1 {
				return e.Values[0]
			}
		}
	}
	return ""
}

// step is the next step for a volume of Balsa's driver.
type step uint8

const (
	nothing step = iota
	guard        // put our finalizer on it
	release      // take our finalizer off it: the directory is not ours to remove
	reclaim      // remove the directory, and then the object
)

// stepFor: a volume of the policy Delete goes with its directory, in whatever order its claim and the object are deleted.
func stepFor(v *v1.PersistentVolume) step {
	guarded, deletes := slices.Contains(v.Finalizers, finalizer), v.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete
	ending := v.DeletionTimestamp != nil
	switch {
	case ending && !guarded:
		return nothing
	case deletes && (v.Status.Phase == v1.VolumeReleased || ending && v.Status.Phase != v1.VolumeBound):
		return reclaim
	case deletes && !guarded:
		return guard
	case !deletes && guarded:
		return release
	}
	return nothing
}

// grows reports whether a bound claim asks for more than its volume has.
func grows(c *v1.PersistentVolumeClaim, v *v1.PersistentVolume) bool {
	want, has := c.Spec.Resources.Requests[v1.ResourceStorage], v.Spec.Capacity[v1.ResourceStorage]
	return c.Status.Phase == v1.ClaimBound && c.DeletionTimestamp == nil && want.Cmp(has) > 0
}

// resized is the status of a claim whose volume has grown to size.
func resized(s v1.PersistentVolumeClaimStatus, size resource.Quantity) v1.PersistentVolumeClaimStatus {
	s = *s.DeepCopy()
	if s.Capacity == nil {
		s.Capacity = v1.ResourceList{}
	}
	if s.AllocatedResources == nil {
		s.AllocatedResources = v1.ResourceList{}
	}
	s.Capacity[v1.ResourceStorage], s.AllocatedResources[v1.ResourceStorage] = size, size
	delete(s.AllocatedResourceStatuses, v1.ResourceStorage)
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
		return c.Type == v1.PersistentVolumeClaimResizing || c.Type == v1.PersistentVolumeClaimControllerResizeError
	})
	return s
}

// cannotGrow is the status of a claim whose volume does not grow to size; for ever, when infeasible.
func cannotGrow(s v1.PersistentVolumeClaimStatus, size resource.Quantity, infeasible bool) v1.PersistentVolumeClaimStatus {
	s = *s.DeepCopy()
	if s.AllocatedResources == nil {
		s.AllocatedResources = v1.ResourceList{}
	}
	if s.AllocatedResourceStatuses == nil {
		s.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{}
	}
	s.AllocatedResources[v1.ResourceStorage] = size
	s.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimControllerResizeInProgress
	if infeasible {
		s.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimControllerResizeInfeasible
	}
	return s
}

// storageCapacity is what is said of the room that a node has for a class.
func storageCapacity(node *storagev1.CSINode, class string, bytes int64) *storagev1.CSIStorageCapacity {
	return &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: capacityName(node.Name, class), Labels: map[string]string{"csi.storage.k8s.io/drivername": Driver},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "storage.k8s.io/v1", Kind: "CSINode", Name: node.Name, UID: node.UID}},
		},
		NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{topologyKey: node.Name}},
		StorageClassName: class, Capacity: resource.NewQuantity(bytes, resource.BinarySI),
	}
}

// outdated are the objects that say what room a node has for classes which are gone, or are another driver's now.
func outdated(node *storagev1.CSINode, known []*storagev1.CSIStorageCapacity, classes []*storagev1.StorageClass) (out []*storagev1.CSIStorageCapacity) {
	for _, k := range known {
		wanted := slices.ContainsFunc(classes, func(c *storagev1.StorageClass) bool { return c.Name == k.StorageClassName && c.Provisioner == Driver })
		if k.Name == capacityName(node.Name, k.StorageClassName) && !wanted {
			out = append(out, k)
		}
	}
	return out
}

// capacityStep is the smallest change of a node's room that is written, as a part of what was said before: other
// programs' files change it all the time.
const capacityStep = 100

// worthWriting reports whether the room that was published says too little or too much.
func worthWriting(was *resource.Quantity, now int64) bool {
	if was == nil {
		return true
	}
	change := now - was.Value()
	return max(change, -change) > was.Value()/capacityStep
}

// hasDriver reports whether our driver is registered on a node.
func hasDriver(n *storagev1.CSINode) bool {
	return n != nil && slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == Driver })
}

// driverObject tells the cluster what our driver does and does not.
func driverObject() *storagev1.CSIDriver {
	no, yes, policy := false, true, storagev1.FileFSGroupPolicy
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: Driver}, Spec: storagev1.CSIDriverSpec{
		AttachRequired: &no, PodInfoOnMount: &no, StorageCapacity: &yes, FSGroupPolicy: &policy,
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
	}}
}

// classObject is the class that claims get which name none, unless there is such a class already.
func classObject(others []storagev1.StorageClass) *storagev1.StorageClass {
	mode, policy, expand := storagev1.VolumeBindingWaitForFirstConsumer, v1.PersistentVolumeReclaimDelete, true
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: className}, Provisioner: Driver,
		VolumeBindingMode: &mode, ReclaimPolicy: &policy, AllowVolumeExpansion: &expand}
	if !slices.ContainsFunc(others, func(o storagev1.StorageClass) bool { return o.Annotations[annDefaultClass] == "true" }) {
		c.Annotations = map[string]string{annDefaultClass: "true"}
	}
	return c
}
