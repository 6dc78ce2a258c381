// Package raftstore owns the cluster's state: keys and bytes at revisions, replicated by Raft, kept on disk, watched, leased, and
// led under fences. It knows nothing of what the bytes mean.
//
// The data model is etcd's version 3: one revision for the whole store, per key a create revision, a mod revision, a version and a
// lease, and a Txn of compares and operations as the only write.
//
//	 Txn, LeaseGrant…      other peers               View, ViewAt, Watch
//	      │ encode once       │ Forwarded                 ▲ never block
//	      ▼                   ▼                           │
//	┌ consensus ────────────────┐ committed ┌ machine ────┴────────────────────┐
//	│ elsewhere: Peers.Forward  │──────────▶│ state: copy-on-write tree, hist. │
//	│ here: Raft, group commit  │◀──────────│ root:  what readers hold         │
//	└──────┬────────────────────┘  results  │ hub:   events to watchers        │
//	       ▼                                │ lessor: when leases run out      │
//	     raftlog: wal/, snapshot            └──────────────────────────────────┘
//
// # Packages
//
//	mvcc       the state, pure: no clock, no randomness, no I/O. Time enters as log entries, which the leader proposes
//	consensus  commands into the log on whichever server leads; when reads are current
//	raftfix    what hashicorp/raft gets wrong, corrected around it
//	raftlog    Raft's log, term and vote, in segments (wal) or a bbolt file; a disk that refuses passes
//	snapshot   snapshots as files, and states on their way in and out
//	peer       the one TCP port and the requests between servers
//	member     which servers are alive, and which get a vote
//	errdefs, diskfile   the errors, and how files are written
//	simnet, raftstoretest   a network and a disk in memory, for tests
//
// # Goroutines
//
// Raft's own: its main loop, which writes the log, the FSM loop, which alone changes the state and publishes roots, one for
// snapshots, one per follower. On a leader with followers another goroutine writes the log as long as there is something to write,
// and one per follower delays acknowledgements (raftlog). Open adds three: one sends proposals, with one for each batch under way,
// one observes Raft, one relays what the transport received. On the leader there are up to two per follower while a read is to be
// confirmed or a commit index to be sent (raftfix). Run adds two: one revokes leases that ran out, one compacts history and takes
// snapshots. Each held Leadership has one that renews it. Watchers have none: Next pulls. Close, or the end of Run, joins them all.
//
// # Locks
//
// hub.mu orders publication against watchers and is held for a binary search or an append; copyMu guards the constant-time copy of
// a published tree; lessor.mu and Store.mu guard their own, as the locks of the packages below do. None is held while another is
// taken, except that copyMu may be taken last.
//
// # Disk
//
// An acknowledged write is in the log, synced once with the other writes that waited, on the leader and the followers at the same
// time. Entries and snapshots carry a checksum. Everything is checked when the store opens, and damage is an error that names the
// file; a directory that held data never opens empty. When the disk is full or read-only, writes are refused with ErrDiskFull or
// ErrDiskReadOnly, reads and watches go on, and writes are accepted again when the disk works.
package raftstore
