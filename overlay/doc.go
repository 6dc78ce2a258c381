// Package overlay owns the network of one node: the bridge for its pods, the rules for Services and host ports, the routes
// to other nodes' pods, and the cluster's DNS. It knows only the addresses of pods, and calls no container runtime: the
// runtime reads the CNI configuration that this package writes.
//
//	Services, EndpointSlices, ┌──────────────► services.Plan ──► rules.Table ─► nft.Conn ─► kernel: nftables
//	Node, Pods of the node ───┤ engine         host.Config ────► host.Host ──► kernel: links, routes, settings
//	all Nodes ────────────────┼──────────────► routes.Build ───► host.Host ──► kernel: routes to other nodes' pods
//	                          │                 ▲    └─────────► pmtu.Prober, relay.Relay ──► other nodes
//	                          │                 └── path MTUs ───┘
//	      (informers)         ├──────────────► conflist ───────► CNI directory
//	                          └──────────────► dns.Zone ───────► dns.Server ──► pods
//	kernel (netlink events) ──► engine: compare again, repair
//
// The engine is one goroutine, the only one that writes to the kernel. Informer handlers and the netlink watches only wake
// it. It applies the first change at once, and afterwards all changes that arrived meanwhile together. Of Services it plans
// only those that changed (proxy.go, one proxy for each address family). Comparing again is always safe, so a restart
// changes nothing that is correct already.
//
// Handlers fill the DNS zone themselves; it has its own lock. Stale UDP flows are deleted by a goroutine of their own. When
// nothing changes, two things run: every 5 s a look at a dozen kernel settings, because the kernel announces no changes of
// those, and every few minutes a probe of each path through the tunnel.
//
// NetworkPolicies have a separate engine and tables (overlay/policy), because most clusters have no policies and then need
// neither table nor watch. Both engines write through package nft. Their plans stay apart: each knows what the kernel holds
// in its own terms (services.Delta, plan.Change), so that a change costs what changed, and a difference of general nftables
// values would have to hold and compare all elements twice.
//
// A backend is in the kernel when nftables has announced (NFNLGRP_NFTABLES) an element of the map "backends" in table "balsa"
// whose value is the backend's address and port; the change has reached packets then.
package overlay
