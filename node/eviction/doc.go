// Package eviction decides which pods have to go so that the node keeps running, and what is given up before. It decides by
// values alone; the agent observes, measures and carries out.
//
//	flags ─► Flags.Parse ─► thresholds ┐
//	        what the machine has left ─┤
//	        what is remembered ────────┴► Decide ─► conditions, the starved resource ─► Choose ─► pod, grace, message
//
// A pod also has to go when it takes more of the disk than it may (Over): emptyDir volumes beyond their sizeLimit, and
// containers beyond their limits of ephemeral-storage. The order of the rules and the texts are those of the upstream
// kubelet.
package eviction
