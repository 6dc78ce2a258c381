// Package aggregation owns API aggregation: the APIServices of what is served here, kept by upstream's rules, and the way
// to the servers that other APIServices name.
//
//	APIServices ──▶ Run ─┬─▶ table: group, version → target ◀── Before ◀── authorized requests
//	(one informer)       │        (immutable, one pointer)        │
//	                     ├─▶ area: one per namespace that holds   ├──▶ target: proxied as the front proxy,
//	CRDs ──▶ local APIs ─┘   a Service of a target: upstream's    │    X-Remote-User and so on ──▶ Service's endpoints
//	(upstream's              availability checks, endpoints       └──▶ the next handler: everything else
//	 autoregister)       └─▶ upstream's discovery manager ──▶ /apis
//
// An APIService with a Service is a target; one without is local. While there is no target, the table is nil, nothing is
// polled, and of Services and EndpointSlices nothing is held. Each server of a cluster looks itself whether a target is
// available to it, as kube-apiservers do; what they find is in the store.
//
// Targets are reached at the endpoints of their Service and not at its address, with the same dialer as pods and kubelets:
// a server need not route Services itself. What a target says about itself (discovery, OpenAPI) is read up to a limit and
// within a time; what it answers to requests is passed on as it comes. A request that another aggregator of this cluster
// has passed on is not passed on again.
//
// The core group's version v1 stays here whatever its APIService says: the way to Services leads through it.
//
// Goroutines, joined by Run: the one that follows APIServices and definitions, the informers, one per area that makes
// upstream look again. Workers of upstream's controllers end with Run's context too, but offer no way to wait for them.
// Locks: none; Aggregation.table is an atomic pointer, everything else belongs to Run's goroutine or never changes.
package aggregation
