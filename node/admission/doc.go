// Package admission decides whether a node takes a pod that was bound to it.
//
// It repeats what the scheduler has checked, because a pod may be bound without it, and checks what only the node
// knows: which sysctls it allows, what its kernel and its container runtime can. Every rule is a function of values, and
// the reasons and texts are those of the upstream kubelet. A refused pod fails; it is never run in part.
package admission
