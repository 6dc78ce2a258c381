// Package direct owns the reads that are answered from stored bytes, without
// decoding an object: GET of one object or of a list, of a kind that is stored in
// the version that is asked for.
//
//	authentication, authorization, fairness ──▶ Handler ─┬─ can it ──▶ storage.Bytes ──▶ answer
//	                                                     └─ cannot ──▶ k8s.io/apiserver
//
// A protobuf answer is the stored messages with the resourceVersion put into their
// metadata, which the store does not keep there. A JSON answer is made of renderings,
// each made once from the stored message and kept while it is asked for. Both are,
// byte for byte, what the other way gives; a test compares them for every kind.
//
// What a request asks for that is not known here (a Table, a field selector, a
// parameter of later versions), or is wrong in, goes to k8s.io/apiserver before a byte
// is written: this package says no only when the store did.
//
// Goroutines: those of the requests. A timer drops renderings nobody asked for.
package direct
