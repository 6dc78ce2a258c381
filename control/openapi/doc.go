// Package openapi owns the OpenAPI documents of the API server and the schemas of server-side apply, and builds them
// when somebody asks.
//
// Upstream builds both documents and the field schemas while the server starts and holds them for its lifetime, which
// is a good part of its start-up time and of its memory. Here nothing is built before the first request:
//
//	GET /openapi/v2 ─────────┐
//	GET /openapi/v3 ─ index ─┤ hashes name the program and the path, so the index needs no document
//	GET /openapi/v3/GROUP ───┤──▶ Documents: definitions, then the one document; all dropped when idle
//	write of an object ──────┘──▶ Types: the schema of the API group, built once and kept (managedFields need it)
//
// What other servers serve they document themselves. They are asked when somebody asks here, at most once a minute: for
// v2, all of what they say is merged; of v3, the index shows where their documents are, and a request for one is passed on
// to them. A server that knows v2 alone is shown in v3 as what its v2 document says.
//
// Goroutines: none of its own; a timer drops the documents. Locks: Documents.mu guards what is built and is held while
// it is built, so that one request builds and the others wait; Types.mu does the same for schemas, answers.mu while other
// servers are asked. Types.mu is taken before Documents.mu, answers.mu with neither.
package openapi
