// Package corpus holds recorded answers of upstream's kube-apiserver and compares a server's answers with them.
//
//	record (a program) ──▶ kube-apiserver, etcd ──▶ testdata/*.zst      once per Kubernetes version
//	                                                   │
//	tests ──▶ the same requests ──▶ a server here ──▶ compared: documents line by line, answers byte for byte
//
// Two things are recorded. The surface is discovery in both forms and the OpenAPI documents (Surface). A scenario is the requests
// that are made of an object of each kind from its creation to its deletion, in every encoding, with their answers
// (RunScenario). Values that differ between any two servers are replaced on both sides before the comparison (Normalize):
// UIDs, resource versions, times close to now, and tokens made of them.
//
// An intended difference is a value with a reason (Allowed). An allowed difference that does not occur any more fails the test,
// too.
//
// It is a client and imports nothing of the server. Goroutines: none. Locks: none.
package corpus
