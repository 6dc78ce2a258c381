// Package badapi owns requests that nobody means: random ones, made from the documents a server publishes about
// itself. Nothing of the product imports it.
//
//	/openapi/v3 ──▶ Documents: every path, method, parameter and schema ─┐
//	seeds.yaml, answers of earlier requests: objects that are accepted ──┼─▶ Wild.Next ──▶ a request
//	a seed: the same requests again ─────────────────────────────────────┘
//
// A request is a path of the documents with names that may exist, parameters that may make sense, and a body that is an
// accepted object, one made from its schema or neither, with some of it spoiled, in any of the encodings. What may come
// back is a table (verdict.go): no panic, and no 5xx but those that upstream answers too.
//
// It has neither goroutines nor locks; a Wild belongs to one goroutine.
package badapitest
