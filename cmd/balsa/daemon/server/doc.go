// Package server runs a server: a control-plane peer, and the node on its machine. It creates and starts the parts in the
// order in which data flows, and stops them in the reverse order (lifecycle.Group). Run is the entry point; Preflight checks
// the machine before.
//
//	certificates ▸ port ▸ store ▸ gossip ▸ peers ▸ members ▸ nodes' connections ▸ API ▸ gRPC ▸ leader ▸ node
//
// When the cluster was reset without this server, the server discards its data and joins again (rejoin.go). Run ends
// without an error when the server has left its cluster.
package server
