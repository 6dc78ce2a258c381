// Package encryption owns the encryption of stored API objects: an EncryptionConfiguration (apiserver.config.k8s.io/v1;
// identity, aesgcm, secretbox, aescbc, KMS plug-ins of version 2), as kube-apiserver reads it. The ciphers and the
// parsing are upstream's. This package follows changes of the file, and reports which stored objects cannot be
// decrypted or have to be rewritten.
//
//	                                   file ──(kernel's events)──▶ Run ─▶ generation: a transformer per resource
//	                                                                          │
//	registry ─▶ control/storage ─┐                                           ▼
//	listers ──▶ control/auth/listers ┼──▶ For(resource): encrypt, decrypt, note what could not be ──▶ Check (readiness)
//	Service ──▶ control/rest ────┘                                           ▲
//	                                                                          │
//	             balsa secrets ──▶ Handler: which provider and key holds what, what is to be rewritten
//
// The keys are only in the file and not in the store: otherwise each snapshot, log and backup would contain the keys
// together with the data. So every server needs the same file, and on no server may another user than its owner read
// it. Objects that were written before a change stay as they are until they are written again. Former versions of an
// object remain in the store's history, log and snapshots until these are compacted or deleted.
//
// Goroutines: Run follows the file. Upstream's probes of KMS plug-ins end with their generation, but there is no way to
// wait for them. Locks: Encryption.mu guards the list of objects that could not be decrypted, for map operations only.
package encryption
