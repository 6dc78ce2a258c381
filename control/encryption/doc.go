// Package encryption owns with what the API's objects are encrypted at rest: an EncryptionConfiguration
// (apiserver.config.k8s.io/v1; identity, aesgcm, secretbox, aescbc, KMS plug-ins of version 2), as kube-apiserver reads
// it. Ciphers and configuration are upstream's. Here they are followed when they change, and it is said which stored
// objects they do not fit.
//
//	                                   file ──(kernel's events)──▶ Run ─▶ generation: a transformer per resource
//	                                                                          │
//	registry ─▶ control/storage ─┐                                           ▼
//	listers ──▶ control/auth/listers ┼──▶ For(resource): encrypt, decrypt, note what could not be ──▶ Check (readiness)
//	Service ──▶ control/rest ────┘                                           ▲
//	                                                                          │
//	             balsa secrets ──▶ Handler: which provider and key holds what, what is to be rewritten
//
// The keys are in the file and nowhere else: not in the store, whose snapshots, log and backups would then carry lock
// and key together. So the file must be the same on every server, and on none may anybody but its owner read it.
// Objects that were written before stay as they are until they are written again. What a former version of an object
// held is in the store's history, log and snapshots until these are compacted or gone.
//
// Goroutines: Run follows the file; upstream's probes of KMS plug-ins end with their generation, but nobody can wait for
// them. Locks: Encryption.mu guards what could not be decrypted, for map operations only.
package encryption
