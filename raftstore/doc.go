// Package raftstore owns the cluster's state: keys and bytes at revisions,
// replicated by Raft, kept on disk, watched, leased, and led under fences. It
// knows nothing of what the bytes mean.
//
// The data model is etcd's version 3: one revision for the whole store, per key
// a create revision, a mod revision, a version and a lease, and a Txn of
// compares and operations as the only write.
//
//	 Txn, LeaseGrant…     other peers                View, ViewAt, Watch
//	      │ encode once      │ Forwarded                  ▲ never block
//	      ▼                  ▼                            │
//	┌ outbox ──▶ consensus ─────┐ committed ┌ machine ────┴────────────────────┐
//	│ elsewhere: Peers.Forward  │──────────▶│ state: copy-on-write tree, hist. │
//	│ here: Raft, group commit  │◀──────────│ root:  what readers hold         │
//	└──────┬────────────────────┘  fates    │ hub:   events to watchers        │
//	       ▼                                │ lessor: when leases run out      │
//	     disk: wal/, snapshots/             └──────────────────────────────────┘
//
// The state is package mvcc, which is pure: no clock, no randomness, no I/O. Time
// enters as log entries, which the leader proposes. The log's files are package
// wal, errors have their names in errdefs.
//
// # Goroutines
//
// Raft's own: its main loop, which writes the log, the FSM loop, which alone
// changes the state and publishes roots, one for snapshots, one per follower.
// A leader with followers leaves the writing to another, which lives as long as
// there is something to write (tail); one per follower lets answers wait for it
// (acks).
// Open adds three: one sends what is in the outbox, with one for each batch under
// way, one hears what Raft tells, one relays what the transport received. On the
// leader there are up to two per follower while there is something to ask or
// tell it (links). Run adds two: one revokes leases that ran out, one compacts
// history and takes snapshots. Each held Leadership has one that renews it.
// Watchers have none: Next pulls. Close, or the end of Run, joins them all.
//
// # Locks
//
// hub.mu orders publication against watchers and is held for a binary search or
// an append; copyMu guards the constant-time copy of a published tree;
// lessor.mu, Store.mu, consensus.mu, outbox.mu, ledger.mu, links.mu, link.mu,
// round.mu, gate.mu, reads.mu and tail.mu guard their own. None is held while another is
// taken, except that copyMu may be taken last, and round.mu under link.mu.
//
// # Disk
//
// An acknowledged write is in the log, a directory of segments, synced once with
// whatever else was waiting, on the leader and the others at the same time.
// Entries and snapshots carry a checksum. Everything is checked when the store
// opens, and damage is an error that names the file; a directory that held data
// never opens empty. When the disk is full or read-only, writes are refused with
// ErrDiskFull or ErrDiskReadOnly, reads and watches go on, and writes are taken
// again when the disk is.
package raftstore
