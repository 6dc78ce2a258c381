// Package badapitest makes random requests from the documents that a server publishes about itself, to find requests
// that break it. The product does not import it.
//
//	/openapi/v3 ──▶ Documents: every path, method, parameter and schema ─┐
//	seeds.yaml, answers of earlier requests: objects that are accepted ──┼─▶ Wild.Next ──▶ a request
//	a seed: the same requests again ─────────────────────────────────────┘
//
// A request has a path of the documents with names that may exist, parameters that may be valid, and a body in any of
// the encodings: an accepted object, one made from its schema, or neither, partly damaged. A table says which answers
// are allowed (verdict.go): no panic, and no 5xx except those that upstream gives too.
//
// The package starts no goroutine and has no locks. A Wild belongs to one goroutine.
package badapitest
