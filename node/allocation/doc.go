// Package allocation allocates exclusive resources of the machine to a pod before its first container starts.
//
// Admit goes through the pod's containers in the order in which they start. For each it asks the providers for the NUMA
// nodes that they could use, lets package topology choose among them, and lets the providers allocate. A pod whose
// resources are not available gets none and fails, with upstream's reasons. Allocated resources stay with the pod until
// Release.
package allocation
