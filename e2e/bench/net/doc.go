// Command net measures the network: the cost of packets between pods on two hosts, the additional cost of a Service,
// and the delay until the kernel has what the API has when there are many Services. It prints one table.
//
//	main ── families ─┬─ paths ──── pods over the overlay, and over a VXLAN device
//	                  │             and routes made by hand on two more hosts, and on
//	                  │             two that track connections beside
//	                  ├─ service ── pods through a Service, and the same without
//	                  └─ scale ──── many Services: the overlay alone, and
//	                                upstream's kube-proxy in nftables mode
//
// Hosts are network namespaces on a switch (package lan). All of them use the API of one balsa server on another host.
// The overlay runs alone (overlay/alone), as kube-proxy does. The compared systems are measured window by window in
// turns, so that the noise of a shared machine affects both. Where the work of a system would slow the other one, it is
// stopped while the other is measured.
package main
