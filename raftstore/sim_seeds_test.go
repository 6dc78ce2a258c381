package raftstore_test

import "testing"

// failed are seeds that found a fault, with what it was. A run is not repeated
// bit for bit, so each stands for its kind more than for itself.
var failed = []struct {
	seed uint64
	why  string
}{
	{10, "a write that a snapshot swallowed was proposed again and happened twice"},
	{28, "a store could not be closed: Raft never answered what was left in its queue"},
	{320, "a follower was sent the same snapshot for ever: its log did not know the last entry of it"},
	{173, "a disk that was full between removing and writing the end of the log: Raft missed an entry and panicked"},
	{328, "a leader that had been replaced said that a lease was gone"},
	{2084, "a store could not be closed: a transfer of leadership was never answered"},
	{3129, "a lease was revoked by a leader of an earlier term"},
	{3507, "a heartbeat took the term back; committed entries were lost"},
	{3901, "a store could not be closed while a snapshot waited for a full disk"},
	{10062, "a leader refused all writes because log could not be removed"},
}

func TestSeedsThatFailedOnce(t *testing.T) {
	var stats simStats
	for _, f := range failed {
		if !simulate(t, f.seed, 0, &stats) {
			t.Errorf("seed %d failed again; it once found: %s", f.seed, f.why)
		}
	}
}
