// Package nodesetup starts everything that a machine with pods needs, on a server and on an agent alike: the container
// runtime, the network, the node agent, the kubelet's API, load balancers' addresses, ingress, and the tunnel to the servers.
//
//	StartRuntime ──▶ Node.Start: network check ▸ network ▸ DNS ▸ load balancers ▸ ingress ▸ policies ▸ node ▸ kubelet API
//
// The parts are started in a lifecycle.Group that the server or the agent stops. The package decides at which addresses the
// machine is a node (Address, IPs), and removes from the kernel what the network made (CleanNetwork).
package nodesetup
