// Package openapi owns the OpenAPI documents of the API server and the schemas of server-side apply. It builds them
// when a client first asks for them.
//
// Upstream builds both documents and the field schemas while the server starts and holds them for its lifetime. That
// costs much of its start-up time and memory. Here nothing is built before the first request:
//
//	GET /openapi/v2 ─────────┐
//	GET /openapi/v3 ─ index ─┤ hashes name the program and the path, so the index needs no document
//	GET /openapi/v3/GROUP ───┤──▶ Documents: definitions, then the one document; all dropped when idle
//	write of an object ──────┘──▶ Types: the schema of the API group, built once and kept (managedFields need it)
//
// Aggregated servers document what they serve. They are asked when a client asks here, at most once a minute. Their v2
// documents are merged into this server's. The v3 index lists the v3 documents of these servers, and a request for one
// is passed on. For a server that has only v2, the v3 document is made from its v2 document.
//
// No goroutines; a timer drops the documents. Locks: Documents.mu guards the documents and is held while they are
// built, so that one request builds and the others wait. Types.mu does the same for schemas, answers.mu while other
// servers are asked. Types.mu is taken before Documents.mu; answers.mu is never held together with another lock.
package openapi
