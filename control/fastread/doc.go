// Package fastread owns the reads that are answered from stored bytes, without decoding an object: GET of an object,
// lists and watches, of kinds that are stored in the requested version.
//
//	authentication, authorization, fairness ──▶ Handler ─┬─ stored bytes do ──▶ storage.Bytes ──▶ answer, events
//	                                                     └─ they do not ──────▶ k8s.io/apiserver
//	                                      custom resources: with an offer ──▶ ⋯ ──▶ storage.Verbatim
//
// A protobuf answer consists of the stored messages with the resourceVersion put into their metadata, because the store
// does not keep it there. A JSON answer consists of renderings; each is made once from the stored message and kept
// while clients read it. Both are byte for byte what k8s.io/apiserver answers. A test compares them for every kind.
//
// Only the handler of custom resources knows these kinds: it checks each request, finds the version and its schema, and
// writes the answer. This package offers its storage to leave the objects as stored texts. The handler then writes an
// empty object or list, into which this package puts the texts (forward.go).
//
// The namespace, the name and the selectors of a read are those that were authorized (scope.go): one function reads the
// path and the query, and compares them with RequestInfo. If they differ in anything, as with the /watch/ prefix or
// with a Node below a namespace, the request goes to k8s.io/apiserver, which knows what it means. make diffread
// compares the answers of both for generated requests.
//
// A request for something that this package does not know (a Table, a field selector, a parameter of later versions),
// or with a fault, goes to k8s.io/apiserver before a byte is written. This package answers with an error only if the
// store failed.
//
// A watch runs on the goroutine of its request: it pulls from the store's history and writes to the client. The first
// watcher that needs an event encodes it, and all watchers write these bytes (frames.go). The initial events are made
// of stored messages and renderings, as a list is. A slow client delays only its own watch; once the store's history
// has overwritten an event that the watch has not read, the watch ends with 410. Objects stored in another version,
// bookmarks and errors are encoded as k8s.io/apiserver encodes them.
//
// Goroutines: only those of the requests. A timer drops unused renderings; when the last watcher leaves, the events are
// dropped. Locks: renderings.mu and frames.mu. While one of them is held no other lock is taken and nothing is encoded.
package fastread
