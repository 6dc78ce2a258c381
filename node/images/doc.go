// Package images makes images present on the node and removes unused ones when the disk fills up. It pulls with the
// credentials of the pod's pull secrets, keeps to the pull policy and records events in upstream's words. It decides
// nothing about retries: package podloop does.
package images
