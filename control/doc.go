// Package control owns the API server: it puts upstream's API machinery on top of the replicated store and serves it.
//
//	TLS listener ──▶ ┌ chain ───────────────────────────────────────────┐    ┌ kinds, rest ─────────┐
//	                 │ recover · request info · deadline · authenticate │ ─▶ │ decode · admit ·     │ ─▶ storage ─▶ raftstore
//	in-process ────▶ │ audit · impersonate · fair share · authorize     │    │ strategy · encode    │
//	client           └──────────────────────────────────────────────────┘    └──────────────────────┘
//	                   auth/authn, auth/authz, audit, flow                      auth/admission, openapi
//
// New assembles all of it and starts nothing; Run serves until its context ends. What upstream prepares while it
// starts and then holds (OpenAPI documents, field schemas, watch caches, informers for admission and authorization) is
// either made when it is first asked for or read from the store itself, so that a server answers in well under a
// second and holds little.
//
// Client is the way in for the rest of the process: an HTTP transport that calls the handler chain directly, as the
// user it is made for, with no socket and no TLS between.
//
// Custom resources are upstream's apiextensions server behind the main one, in the same process and on the same store;
// both enter their groups into one discovery document.
//
// Groups that other servers serve are theirs to answer for: behind authorization, control/aggregation passes their requests
// on.
//
// Goroutines, joined by Run: the HTTP server's, one per in-process request, the writer of default objects, the informer
// of CustomResourceDefinitions. Upstream's controllers of those definitions end with Run's context too, but offer no way
// to wait for them.
// Locks: response.mu guards one in-process response between its handler and its reader.
package control
