// Package fastread owns the reads that are answered from stored bytes, without
// decoding an object: GET of one object or of a list, and watches, of a kind that is
// stored in the version that is asked for.
//
//	authentication, authorization, fairness ──▶ Handler ─┬─ can it ──▶ storage.Bytes ──▶ answer, events
//	                                                     └─ cannot ──▶ k8s.io/apiserver
//	                                      custom resources: with an offer ──▶ ⋯ ──▶ storage.Verbatim
//
// A protobuf answer is the stored messages with the resourceVersion put into their
// metadata, which the store does not keep there. A JSON answer is made of renderings,
// each made once from the stored message and kept while it is asked for. Both are,
// byte for byte, what the other way gives; a test compares them for every kind.
//
// Custom resources are known to their own handler only, which checks each request, finds
// the version and its schema, and writes the answer; but the storage it asks may leave
// objects as the texts that are stored, and then it writes a shell into which they are
// put here (forward).
//
// The namespace, the name and the selectors of a read are those that authorization
// judged (scope.go): one function looks at the path and the query, and only compares
// them with RequestInfo. Where they say anything else, as with the /watch/ prefix or
// with a Node below a namespace, the request goes to k8s.io/apiserver, which knows what
// it means. make diffread holds both ways to the same answers for generated requests.
//
// What a request asks for that is not known here (a Table, a field selector, a
// parameter of later versions), or is wrong in, goes to k8s.io/apiserver before a byte
// is written: this package says no only when the store did.
//
// A watch is the goroutine of its request: it pulls from the store's history and
// writes to the client. An event is made once, by the first watcher that comes to it,
// and written by all of them (frames); what is there at the beginning is made of
// stored messages and renderings, as a list is. A client that does not read makes its
// own watch wait, and when history has gone round without it the watch ends with 410.
// Objects that were stored in another version, bookmarks and errors are encoded as
// k8s.io/apiserver encodes them.
//
// Goroutines: those of the requests. A timer drops renderings nobody asked for; the
// last watcher to leave drops the events. Locks: renderings.mu and frames.mu, neither
// of which is held while another is taken or while anything is encoded.
package fastread
