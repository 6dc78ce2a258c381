// Package overlay owns the network of one node: the bridge its pods hang on, the way packets to Services and host ports
// take, and the names of the cluster. It knows pods by their addresses only, and nothing of container runtimes: those read
// the CNI configuration it writes.
//
//	Services, EndpointSlices, ┌──────────────► routing.Plan ───► nft.Table ──► kernel: nftables
//	Node, Pods of the node ───┤ engine         host.Config ────► host.Host ──► kernel: links, routes, settings
//	all Nodes ────────────────┼──────────────► mesh.Build ─────► host.Host ──► kernel: ways to other nodes' pods
//	                          │                 ▲    └─────────► paths.Prober, relay.Relay ──► other nodes
//	                          │                 └── path MTUs ───┘
//	      (informers)         ├──────────────► conflist ───────► CNI directory
//	                          └──────────────► dns.Zone ───────► dns.Server ──► pods
//	kernel (netlink events) ──► engine: look again, repair
//
// The engine is one goroutine: it alone writes to the kernel. Informer handlers and the netlink watch only tell it that
// something changed. It carries out the first change at once, and what comes meanwhile with the next look; of Services only
// those that changed are worked out again (proxy, one of each address family). Looking again is always safe, so a restart
// leaves alone what is right. Handlers fill the DNS zone themselves, which has its own lock, and flows of datagrams are
// forgotten by a goroutine of its own. With nothing changing, nothing runs but a look at a dozen kernel settings every few
// seconds, of which the kernel tells nobody, and a probe of each way through the tunnel every few minutes.
//
// A backend is in the kernel when nftables has told its listeners (NFNLGRP_NFTABLES) of an element of the map "backends" in
// table "balsa" whose value is the backend's address and port; the change has reached packets then.
package overlay
