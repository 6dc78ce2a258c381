// Package dra has the drivers of Dynamic Resource Allocation prepare the devices of ResourceClaims for the pods of this node, and take
// them back after (KEP-4381).
//
//	node/pluginwatcher ──▶ drivers: a gRPC connection for each endpoint ──▶ ResourceSlices of a driver that is gone are deleted
//	                          ▲
//	worker: Prepare ──▶ the claims in the API ──▶ NodePrepareResources ──▶ record ──▶ CDI devices of containers (ForContainer)
//	worker: Unprepare ──▶ NodeUnprepareResources ──▶ record removed
//
// The record, RootDir/dra_claims, is written before a driver is called and after it has answered. It says which pods use a claim, so
// that whatever a crash interrupted is asked for once more: the calls are idempotent. A claim is prepared only if it is allocated and
// reserved for the pod.
//
// Locks: each claim has one, held over the calls to its drivers, several in the order of their names. Manager.mu guards maps and the
// record; it is taken after them and never held over a call. Goroutines: Run holds one, and one for each connection.
package dra
