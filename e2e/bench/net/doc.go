// Command net owns the figures of the network: what packets between pods
// on two hosts cost, what a Service adds to them, and how long the kernel takes
// to have what the API has when there are many Services. It prints one table.
//
//	main ── families ─┬─ paths ──── pods over the overlay, and over a VXLAN device
//	                  │             and routes made by hand on two more hosts, and on
//	                  │             two that track connections beside
//	                  ├─ service ── pods through a Service, and the same without
//	                  └─ scale ──── many Services: the overlay alone, and
//	                                upstream's kube-proxy in nftables mode
//
// Hosts are network namespaces on a switch (package lan). All of them have the
// same API, that of a balsa server on a host of its own. The overlay runs alone
// (overlay/alone), as kube-proxy does. Whatever is compared is measured in turns,
// window by window, so that the noise of a shared machine falls on both; who is
// not measured is stopped meanwhile where its work would cost the other.
package main
