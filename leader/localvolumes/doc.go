// Package localvolumes provisions, expands and deletes the volumes of csi.balsa.dev, which are directories of nodes' disks.
//
//	claims with the annotation of our driver and a selected node ──▶ CreateVolume on that node ──▶ PersistentVolume
//	claims that ask for more than their volume has ──▶ ControllerExpandVolume ──▶ the volume's and the claim's capacity
//	released volumes of the policy Delete ──▶ DeleteVolume ──▶ the PersistentVolume goes
//	CSINodes with our driver ──▶ GetCapacity, each minute and after each of the above ──▶ CSIStorageCapacity
//
// It is to this driver what upstream's external-provisioner and external-resizer are to others, with the same annotations,
// finalizer and events. The driver's controller service runs on every node and is called through nodes/proxy. So one
// leader provisions, nodes need no right to write PersistentVolumes, and no node watches the claims of all others.
//
// It writes PersistentVolumes provisioned by csi.balsa.dev, their claims' annotation of the selected node (which it takes
// back when a node has no room, so that another is chosen; for claims that wait for no pod it chooses itself) and sizes, CSIStorageCapacities of its
// StorageClasses, and once the CSIDriver with the StorageClass balsa-local. It never touches claims or volumes of other
// provisioners, and binds nothing: that is the binder's.
//
// Goroutines: the workers of one work loop.
package localvolumes
