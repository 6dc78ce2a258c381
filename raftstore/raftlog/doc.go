// Package raftlog is Raft's log, term and vote on disk, with a disk that is full or read-only as a state that passes.
//
// Two libraries of files can hold the log; a data directory keeps the one it began with:
//
//	wal     segments, package wal: every entry has a checksum, and damage anywhere is an error when the log is opened
//	boltdb  hashicorp/raft-boltdb: one bbolt file
//
// bbolt has checksums on its two meta pages only. For boltdb this package adds a checksum to every entry and every stored value,
// reads the whole file before bbolt opens it for writing, and compares the log's end with the commit index that is kept beside
// it. Two kinds of damage remain undetected with boltdb: an inner page that no longer leads to the newest entries, if they were not
// known to be committed, and a stored value (the term, the vote) that vanishes. wal detects both.
//
// A leader with followers appends beside them and not before them: see overlap and AckTransport. The newest entries stay in
// memory, so that sending them to followers reads no file.
package raftlog
