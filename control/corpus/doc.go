// Package corpus owns what upstream's kube-apiserver answers, recorded, and the comparison of a server's answers with it.
//
//	record (a program) ──▶ kube-apiserver, etcd ──▶ testdata/*.zst      once per Kubernetes version
//	                                                   │
//	tests ──▶ the same requests ──▶ a server here ──▶ compared: documents line by line, answers byte for byte
//
// Two things are recorded. The surface: discovery in both forms and the OpenAPI documents (Surface). The exchanges: what
// one does to an object of each kind from its creation to its deletion, in every encoding, and what was answered
// (Script). What no two servers have in common is blotted out of both sides before they are compared (Blot): UIDs,
// resource versions, times close to now, and tokens made of them.
//
// A difference that is meant is a value with a reason (Allowed); one that is allowed and not there any more fails the
// test too.
//
// It is a client and imports nothing of the server. Goroutines: none. Locks: none.
package corpus
