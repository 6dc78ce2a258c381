// Package storage owns how Kubernetes objects live in the store: it is
// k8s.io/apiserver's storage.Interface on a raftstore.Store.
//
//	registry ──Create, Update, Delete──► encode ─► transform ─► one Txn ─┐
//	   ▲                                                                 ▼
//	   │                                                            raftstore
//	   │           ┌── View (immutable root): Get, GetList ◄─────────────┤
//	   └─ objects ◄┤   decode once, late; Memos keep the hot ones        │
//	               └── Watcher (pull cursor): Watch ◄────────────────────┘
//
// # Reads
//
// There is no watch cache: a list walks an immutable root of the store, and a watch is a cursor on the store's ring of
// events. A read with resourceVersion "" sees every write that any server acknowledged before the read (Store.Barrier).
// It is refused with 503 when no quorum confirms this within three seconds. A read with "0" or an older version is
// answered from the state that this server has applied, with or without a quorum. A read of a version that this server
// has not applied yet (the client learnt it from another server) waits for it. Updates and deletions start from the
// state applied here, as a guess. The write's compare checks the guess, and a request is never refused because of a
// guess: the newest state is read first.
//
// # What is decoded, and how long it is kept
//
// The store keeps encoded bytes. The first watcher that needs a watch event decodes it; other watchers share the
// decoded object and its encoding on the wire (sharedObject). The slot at the KeyValue holds only a weak pointer. Memos
// keeps the most recently used decoded objects alive within a fixed budget, so memory does not grow with the number of
// objects (a decoded object costs five to seven times its bytes). Lists use the kept objects, and keep a bounded part
// of the objects they decode. A Get uses the kept objects but adds none, because adding one would cost a decoding and a
// copy. No caller may change a shared object: Get and GuaranteedUpdate return deep copies, list items share everything
// below their top level (as in upstream's cacher; unstructured items are copied), and watchers get a sharedObject.
//
// For an unstructured object the slot also records whether decoding gives the stored JSON again, apart from the
// resourceVersion. The codec may prune, default and convert, but mostly changes nothing. A caller that offers to take
// texts (Verbatim) then gets the stored text with the resourceVersion put in, and nothing is decoded. Each storage
// finds this out once for each object, by decoding and comparing. A changed schema has a new storage, which finds it
// out again.
//
// # Writes
//
// Every write is one Txn: the compare on the key's mod revision, the compare of
// a fence (WithFence), the compares and operations of Extras (WithExtras). Its
// failure branch reads the compared keys back, so that the error can say which
// compare failed without a second round.
//
// # Goroutines and locks
//
// A watch of decoded objects has one goroutine, which ends with its context, with Stop or with an error. A watch of
// Bytes runs on its caller's goroutine. While decoded objects are kept, a timer lets Memos drop unused ones. Nothing
// else runs. Locks: store.mu (progress watchers), leases.mu, Memos.mu, decoded.mu and the decode locks of a reader.
// Another lock may be taken under a decode lock, and under no other. No lock is held during a call of the store, except
// leases.mu while a lease is granted.
package storage
