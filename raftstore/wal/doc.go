// Package wal owns Raft's log, term and vote as files: a directory of segments, one write and one fdatasync for an append.
// hashicorp/raft-wal decides which segments there are; the files are this package's own, because raft-wal's say nothing of
// damage before their last batch, and cannot say that the last batch was lost.
package wal
