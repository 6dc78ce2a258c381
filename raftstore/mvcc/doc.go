// Package mvcc is the replicated state: keys and values at revisions, their history, leases, and transactions as the only
// write. It is pure: a function of the commands applied to it, without Raft, clock, randomness or I/O (a test checks its imports), so
// every server that applies the same commands holds the same bytes. Readers hold an immutable Root and never block the writer.
//
//	Command ──▶ State.Apply ──▶ State.Capture ──▶ Root: View, History, leases   (immutable, for readers)
//	               one goroutine                   └──▶ WriteSnapshotAt, ReadSnapshotAt
package mvcc
