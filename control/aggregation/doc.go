// Package aggregation owns API aggregation: the APIServices of the groups that this server serves, kept by upstream's
// rules, and the proxy to the servers that other APIServices name.
//
//	APIServices ──▶ Run ─┬─▶ table: group, version → target ◀── Before ◀── authorized requests
//	(one informer)       │        (immutable, one pointer)        │
//	                     ├─▶ serviceNamespace: one that holds     ├──▶ target: proxied as the front proxy,
//	CRDs ──▶ local APIs ─┘   a Service of a target: upstream's    │    X-Remote-User and so on ──▶ Service's endpoints
//	(upstream's              availability checks, endpoints       └──▶ the next handler: everything else
//	 autoregister)       └─▶ upstream's discovery manager ──▶ /apis
//
// An APIService with a Service is a target; one without is local. While there is no target, the table is nil, nothing
// is polled, and no Service or EndpointSlice is held in memory. As kube-apiservers do, each server of a cluster checks
// by itself whether it can reach a target, and the result is written to the store.
//
// A target is reached at the endpoints of its Service and not at the Service's address, with the dialer for pods and
// kubelets, so a server does not need to route Services itself. The documents of a target (discovery, OpenAPI) are read
// up to a size limit and within a time limit; its answers to requests are streamed. A request that another aggregator
// of this cluster has passed on is not passed on again.
//
// Version v1 of the core group is always served here, whatever its APIService says, because Services are read through
// it.
//
// Goroutines, joined by Run: one that follows APIServices and definitions, the informers, and one per serviceNamespace
// that makes upstream check again. The workers of upstream's controllers end with Run's context too, but there is no
// way to wait for them. Locks: none. Aggregation.table is an atomic pointer; everything else belongs to Run's goroutine
// or never changes.
package aggregation
