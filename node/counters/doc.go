// Package counters counts what a node agent does, under the upstream kubelet's names, for /metrics of the kubelet's API.
package counters
