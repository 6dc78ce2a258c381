// Package endpoints keeps the list of addresses behind each Service.
//
//	Services, Pods ──▶ endpoints controller ──▶ Endpoints of Services with a selector
//	Services, Pods, Nodes ──▶ slices controller ──▶ EndpointSlices of the same
//	Services, Endpoints ──▶ mirroring controller ──▶ EndpointSlices of Endpoints that people wrote by hand
//
// Each of the three writes only the objects that carry its own managed-by label (or, for Endpoints, the Service's name),
// and none touches a Service or a Pod.
//
// Goroutines: the workers of one work loop each. The slices controller's tracker and caches have their own locks.
package endpoints
