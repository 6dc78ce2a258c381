package raftfix

// MayEmptyLog reports whether Raft may empty the log, whose last entry has index last, to install the newest snapshot. It is
// the answer for raft.MonotonicLogStore.
//
// Upstream: after a snapshot that leaves a gap, Raft empties a log that must not have gaps, without a look at how far the log
// reaches.
//
// Consequence: if the log goes on behind the snapshot, entries that this server has acknowledged are gone, while Raft takes its
// log for as long as before.
//
// Entries behind the snapshot stay; those that conflict go with the next append. TestASnapshotDoesNotRemoveWhatFollowsIt
// shows it.
func (e *SnapshotEnd) MayEmptyLog(last uint64) bool {
	l := e.last.Load()
	return l == nil || last <= l.Index
}
