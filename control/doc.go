// Package control is the API server: upstream's API machinery on top of the replicated store.
//
//	TLS listener ──▶ ┌ chain ───────────────────────────────────────────┐    ┌ kinds, rest ─────────┐
//	                 │ recover · request info · deadline · authenticate │ ─▶ │ decode · admit ·     │ ─▶ storage ─▶ raftstore
//	in-process ────▶ │ audit · impersonate · fair share · authorize     │    │ strategy · encode    │
//	client           └──────────────────────────────────────────────────┘    └──────────────────────┘
//	                   auth/authn, auth/authz, audit, flow                      auth/admission, openapi
//
// New assembles all of it and starts nothing; Run serves until its context ends. Upstream builds OpenAPI documents, field
// schemas, watch caches and informers for admission and authorization at its start and keeps them. Here they are built at
// their first use or replaced by reads of the store, so that a server answers in well under a second and needs little
// memory.
//
// Client is for the rest of the process: an HTTP transport that calls the handler chain directly as a given user, without a
// socket or TLS.
//
// Custom resources are upstream's apiextensions server behind the main one, in the same process and on the same store; both
// add their groups to one discovery document.
//
// Requests for groups of other servers are authorized here, and then forwarded by control/aggregation.
//
// Goroutines, joined by Run: the HTTP server's, one per in-process request, the writer of default objects, the informer
// of CustomResourceDefinitions. Upstream's controllers of those definitions end with Run's context too, but offer no way
// to wait for them.
// Locks: response.mu guards one in-process response between its handler and its reader.
package control
