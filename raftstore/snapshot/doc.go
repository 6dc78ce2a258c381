// Package snapshot keeps Raft's snapshots as files beside the log, and moves states in and out of the store.
//
//	files.go    the directories of snapshots: made, listed, opened, removed
//	sink.go     a snapshot while it is written, checked if another server sends it
//	clean.go    what a crash left is removed before Raft starts
//	spool.go    a state on its way into Raft, in a nameless file
//
// A snapshot exists from the rename of its directory on; everything before is named *.tmp. The content is package mvcc's, with a
// checksum over all of it. The package starts one goroutine for each snapshot that is received, which ends with the sink.
package snapshot
