// Package podresources serves upstream's PodResources API (v1) on a socket of the node: which pod has which devices and CPUs,
// and what there is to have. Monitoring agents and schedulers that know topology ask it.
//
// Only root reaches the socket. Calls above 100 a second are refused, as upstream does, with bursts of 10.
package podresources
