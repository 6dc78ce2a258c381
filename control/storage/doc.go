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
// There is no watch cache: a list walks an immutable root of the store and a
// watch is a cursor on the store's ring. A read with resourceVersion "" sees
// every write acknowledged before it on any server (Store.Barrier) and is
// refused with 503 when no quorum confirms that within a few seconds; one with
// "0" or an older version is answered from what this server has applied, with
// or without a quorum. A version this server has not reached yet, learnt from
// another one, is waited for. Updates and deletions start from what is applied
// here, as a guess that the write checks; a guess is never what refuses.
//
// # What is decoded, and how long it is kept
//
// The state is the encoded bytes. A watch event is decoded by the first watcher
// that needs it and shared by the others, as is its encoding on the wire
// (sharedObject). The slot at the KeyValue holds only a weak pointer; Memos
// keeps the most recently used decoded objects alive within a fixed budget, so
// memory does not grow with the number of objects (decoded, they cost five to
// seven times their bytes). Lists use what is kept and keep a bounded part of
// what they decoded. A Get uses what is kept but adds nothing: it would pay for
// a decoding and for a copy. Nothing shared is ever handed out to be changed:
// Get and GuaranteedUpdate hand out deep copies, list items share what lies
// below their top level (as upstream's cacher does; unstructured ones are
// copied), watchers get a sharedObject.
//
// Of an unstructured object the slot also holds whether it reads as it is stored, but
// for the resourceVersion: its codec may prune, default and convert, and mostly does
// not. Who offers to take texts (Verbatim) then gets the stored one, with the version
// put in, and nothing is decoded. That is found out by decoding once and comparing, for
// each storage anew: a changed schema has a new one.
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
// A watch has one goroutine, which ends with its context, Stop or an error; that of
// Bytes is its caller's. A timer has Memos let go of what nobody used; nothing else runs. Locks: store.mu (progress watchers), leases.mu, Memos.mu,
// decoded.mu and the decode locks of a reader. Only a decode lock is held while
// another lock is taken, and no lock is held while a store call is made, except
// leases.mu while a lease is granted.
package storage
