// Package devicetaints deletes pods whose devices have a NoExecute taint that their claims do not tolerate (KEP-5055).
//
// It watches Pods, ResourceClaims and ResourceSlices. It writes the DisruptionTarget condition of the pods that it evicts, deletes
// them, and writes events. It changes no claim: the controller of claims frees the devices once their pods have ended. Taints come from
// ResourceSlices alone: DeviceTaintRules are served in beta versions only, which are off by default.
//
// Goroutines: the workers of one work loop; every deadline is a delayed entry of its queue.
package devicetaints
