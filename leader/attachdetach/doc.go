// Package attachdetach says which volumes are attached to which nodes.
//
//	pods on a node, their claims and volumes ──▶ plan (pure) ──▶ VolumeAttachments made and deleted
//	VolumeAttachments, which a driver's external-attacher carries out ──▶ volumesAttached of the Node, events of pods
//
// A volume is detached when no pod on the node uses it and the node says that it is unmounted (status.volumesInUse, which
// a node writes before it mounts). A node that is out of service (its taint) or gone is not asked; one that is not ready
// is waited for six minutes. A volume that one node alone may have is attached to the next when the attachment to the
// last has gone, which is when the driver has detached it.
//
// It makes and deletes VolumeAttachments by the names that upstream gives them, and writes volumesAttached of Nodes. It
// never touches VolumeAttachments of other names, pods, claims or volumes. Volumes whose driver needs no attachment
// (CSIDriver attachRequired: false) are not its own.
//
// Goroutines: the workers of one work loop, one node a key. Lock: controller.mu guards since, held over no I/O.
package attachdetach
