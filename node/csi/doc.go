// Package csi mounts volumes of CSI drivers for the pods of this node, as upstream's kubelet does.
//
//	driver's registrar ──socket──▶ node/pluginwatcher ──▶ Register ──▶ CSINode, topology labels and the driver's id on the Node
//	                                                          │
//	node/volume ──Publish, UnpublishPod──▶ Node ──gRPC──▶ driver's node service (stage, publish, unpublish, unstage, expand, stats)
//	                                        │
//	                                        └──▶ records beside the mounts: vol_data.json
//
// The disk is the state. A record is written before the call that may mount something, and removed after the call that
// took it away. CSI calls are idempotent, so whatever a crash interrupted is asked for once more: by the next SetUp of the
// pod, by its TearDown, or by the sweep that unstages what no pod uses. Nothing is reconstructed, and no memory has to
// agree with the mount table.
//
//	RootDir/plugins_registry/<any>.sock                                      registration, watched
//	RootDir/pods/<uid>/volumes/kubernetes.io~csi/<volume>/{mount,vol_data.json}    a pod's use of a volume
//	RootDir/plugins/kubernetes.io/csi/<driver>/<sha256 of the handle>/{globalmount,vol_data.json}    a staged volume
//	RootDir/plugins/kubernetes.io/csi/volumeDevices/publish/<volume>/<uid>   a block device of a pod
//
// Goroutines: Run holds one, which sweeps and asks for drivers' limits anew. Locks: volumeLocks has one lock for each volume, held
// over the calls to its driver; Node.mu guards maps and is taken after it, never held over I/O.
package csi
