// Package kubeletapi owns the HTTPS API that every node serves, as the kubelet's: logs, exec, attach, port-forward,
// the pods of the node, statistics and metrics.
package kubeletapi
