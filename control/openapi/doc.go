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
// Goroutines: none of its own; a timer drops the documents. Locks: Documents.mu guards what is built and is held while
// it is built, so that one request builds and the others wait; Types.mu does the same for schemas. Types.mu is taken
// before Documents.mu.
package openapi
