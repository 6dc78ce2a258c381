// Package etcd serves etcd's v3 gRPC API on a Balsa server. Programs written for etcd keep their keys in the same
// replicated store as Kubernetes' objects, under a separate prefix.
//
//	etcdctl, client/v3, kube-apiserver
//	      │ gRPC, client certificate
//	      ▼
//	┌ Server ──────────────────────────────────────────────┐
//	│ KV  Lease  Maintenance  Cluster  Auth     Watch      │
//	│      │ prefix on, prefix off                ▲        │
//	│      ▼                                      │ wake   │
//	│ keyspace                 dispatch ──▶ watchIndex     │
//	└──────┬──────────────────────▲────────────────────────┘
//	       │ Txn, View, ViewAt,   │ one cursor over all keys,
//	       ▼ Barrier, Lease…      │ and one for each watch
//	raftstore.Store ──────────────┘
//
// A client's key k is Prefix+k in the store; ranges are mapped so that none leaves the prefix.
//
// # Watches
//
// Each watch holds a cursor of the store's, which has no goroutine and no events of its own. One goroutine of the server
// reads the events of the whole key space, finds the watches they lie in by key, by the prefix lengths in use, and by the
// other ranges, and queues those with their streams. One goroutine of each stream pulls from the cursors that are queued,
// and sends. A client that does not read blocks only its stream's goroutine. When the store has dropped history that a
// watch still needs, the watch is canceled with the revision to continue from.
//
// # Goroutines and locks
//
// Run has two: dispatch, and watchLeader, which ends the streams of clients that require a leader when there is none. Each
// watch stream has one that runs it, which is gRPC's, and one that receives. Close, or the end of Run, joins the streams.
//
// watchIndex.mu may be held while watchStream.mu is taken, never the other way
// round. Server.mu, leaderless.mu and sizeMemo.mu are taken alone.
//
// # What differs from etcd
//
//   - The revision counts the changes of the whole store, so it jumps between two
//     changes of a client's keys. A compaction, and a lease whose (odd) ID the
//     client chose, are writes and count, too.
//   - Compact moves the revision below which this API answers "compacted"; it does
//     not cut the store's history, which Kubernetes needs. The store lets go of
//     history by age and size on its own, whether a client compacts or not: reads
//     and watches of revisions older than that are "compacted" as well.
//   - Header.member_id, leader and cluster_id are the first 64 bits of Balsa's
//     identities. Members are changed by `balsa members`: MemberAdd, MemberRemove,
//     MemberUpdate and MemberPromote are refused.
//   - Authentication is by client certificate only. Users and roles do not exist.
//   - A lease of this API has an even ID unless the client chose another one. The
//     shortest lives one second, the longest ten years; negative IDs are refused.
//     Leases of other users of the store are not found.
//   - A transaction that only reads is linearizable even when its reads are all
//     marked serializable. A read of an older revision in a transaction fails it
//     when that revision is compacted or in the future, also in the branch that
//     is not taken. Nested transactions that write and delete one key are refused
//     in either order. A key is at most 8 KiB.
//   - A range with a limit returns keys of equal sort value in key order.
//   - Hash and HashKV are checksums of another kind than etcd's: to be compared
//     between servers of Balsa.
//   - Snapshot is a database file of etcd 3.6 with the newest version of each of
//     the clients' keys, for etcdutl. Balsa's own snapshots are made by
//     `balsa snapshot`.
//   - Defragment does nothing and succeeds. There are no alarms: a disk that is
//     full is ErrNoSpace until it is not.
//   - The services v3lock and v3election, which few clients call, are left out.
//     Locks and elections of client/v3/concurrency, and so of etcdctl, work.
package etcd
