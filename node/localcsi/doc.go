// Package localcsi is Balsa's own CSI driver, csi.balsa.dev: volumes that are directories of this node's disk.
//
//	node/csi ──registration and node service──▶ ┌──────────┐
//	                                            │  Driver  │──▶ Dir/<volume>/{volume.json,data/}
//	leader/localvolumes ──nodes/proxy──▶ Forward ──controller service──▶ └──────────┘
//
// It is served on a unix socket and registered by the kubelet's way, as a foreign driver is, so there is one path to
// volumes and it is used daily. The controller service runs on the node too, because only the node can make the
// directory; the provisioner of the cluster's leader reaches it through the node's own API. So a node needs no right to
// write PersistentVolumes.
//
// A volume's size is counted and not enforced: a directory takes what the file system has. GetCapacity says what is left
// of the file system after all that was promised, and at most what is free.
//
// Nothing outside Dir is touched. Names are checked, every path below Dir is resolved with os.Root, a pod sees data/
// and never its parent, what is mounted is the directory that was opened without following a symlink, and removal
// follows no symlink and crosses no mount.
//
// Goroutines: Run holds the two servers and joins them. Lock: store.mu guards the table of volumes and is held while a
// directory is made or renamed, not while one is emptied; Driver.mounts is held while a target is mounted or unmounted.
package localcsi
