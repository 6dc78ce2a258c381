// Package server runs a control-plane peer: it builds the parts in the order in which data flows, starts them, and stops them
// in the reverse order (lifecycle.Group). Run is the only entry point, beside Preflight, which checks the machine before.
//
//	certificates ▸ port ▸ store ▸ gossip ▸ peers ▸ members ▸ nodes' connections ▸ API ▸ gRPC ▸ leader ▸ node
//
// A server that learns that its cluster was begun anew without it gives its data up and starts over as a new peer
// (rejoin.go); a server that has left its cluster ends Run without an error.
package server
