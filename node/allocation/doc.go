// Package allocation gives a pod what it has for itself of the machine, before anything of the pod is started.
//
// Admit goes through the pod's containers in the order in which they start. For each it asks the providers where they could
// serve it, has package topology choose the NUMA nodes, and lets the providers allocate. A pod that cannot be served gets
// nothing and fails, with upstream's reasons. What was allocated stays with the pod until Release.
package allocation
