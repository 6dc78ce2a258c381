// Package volumes binds claims to volumes and keeps either from vanishing while it is in use.
//
//	PersistentVolumeClaims, PersistentVolumes, StorageClasses ──▶ binder: which volume serves which claim
//	Pods, PersistentVolumeClaims ──▶ ephemeral claims: a pod's generic ephemeral volume has a claim of the pod's own
//	PersistentVolumeClaims, Pods ──▶ claim protection: a claim stays until no pod uses it
//	PersistentVolumes ──▶ volume protection: a volume stays until no claim is bound to it
//	VolumeAttributesClasses, PersistentVolumeClaims, PersistentVolumes ──▶ class protection: a class stays while it is named
//	PersistentVolumeClaims ──▶ expansion: names in an event the program that resizes the volume
//
// The binder writes spec.volumeName and status of claims, the default class into claims made before there was one,
// spec.claimRef and status of volumes, and deletes volumes whose reclaim policy says so and which no external provisioner
// looks after. Ephemeral claims creates claims. Expansion writes events alone. The others write only the finalizers
// kubernetes.io/pvc-protection, kubernetes.io/pv-protection and kubernetes.io/vac-protection. None touches a Pod or what
// is on a disk.
//
// Goroutines: the workers of one work loop each; the binder has one worker, since two could give one volume away twice.
package volumes
