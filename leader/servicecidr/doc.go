// Package servicecidr says which ServiceCIDRs Services may get addresses of, and keeps one as long as a Service has an
// address that no other network holds (kubernetes: KEP-1880).
//
// It watches ServiceCIDRs, Services and Nodes. It writes the finalizer networking.k8s.io/service-cidr-finalizer and the
// condition Ready of ServiceCIDRs. A network that holds addresses of pods or of a node does not become ready: packets to
// those would be led to Services. The API allocates from ServiceCIDRs that are ready; nodes route those that are ready
// or on their way out.
//
// Goroutines: the workers of one work loop; the grace before an unused network goes is a delayed entry of its queue.
package servicecidr
