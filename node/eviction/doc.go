// Package eviction decides which pods have to go because they take more of the node's disk than they may: emptyDir volumes
// beyond their sizeLimit, and containers beyond their limits of ephemeral-storage. The order of the rules and the texts
// are those of the upstream kubelet.
package eviction
