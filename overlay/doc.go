// Package overlay owns the network of one node: the bridge its pods hang on, the way packets to Services and host ports
// take, and the names of the cluster. It knows pods by their addresses only, and nothing of container runtimes: those read
// the CNI configuration it writes.
//
//	Services, EndpointSlices, ┌──────────────► routing.Build ──► nft.Table ──► kernel: nftables
//	Node, Pods of the node ───┤ engine         host.Config ────► host.Host ──► kernel: links, routes, settings
//	all Nodes ────────────────┼──────────────► mesh.Build ─────► host.Host ──► kernel: ways to other nodes' pods
//	      (informers)         ├──────────────► conflist ───────► CNI directory
//	                          └──────────────► dns.Zone ───────► dns.Server ──► pods
//	kernel (netlink events) ──► engine: look again, repair
//
// The engine is one goroutine: it alone writes to the kernel. Informer handlers and the netlink watch only tell it that
// something changed; it waits a moment for more, works out what should be, and changes what differs. Doing that again is
// always safe, so a restart leaves alone what is right. Handlers fill the DNS zone themselves, which has its own lock.
// With nothing changing, nothing runs.
package overlay
