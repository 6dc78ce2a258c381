package raftlog

import (
	"bytes"
	"testing"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

// entry is a log entry whose content follows from index and term.
func entry(index, term uint64) *raft.Log {
	return &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: bytes.Repeat([]byte{byte(index), byte(term)}, int(20+index*7%90))}
}

func entries(first, n, term uint64) []*raft.Log {
	var logs []*raft.Log
	for i := range n {
		logs = append(logs, entry(first+i, term))
	}
	return logs
}

func TestCachedEntriesAreTheLogs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r entryCache
		model := map[uint64]*raft.Log{}
		next := uint64(1)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				lo := rapid.Uint64Range(1, next).Draw(t, "lo")
				for i := range model {
					if i >= lo {
						delete(model, i)
					}
				}
				r.drop(lo, next)
				next = lo
			case 1:
				hi := rapid.Uint64Range(0, next).Draw(t, "hi")
				for i := range model {
					if i <= hi {
						delete(model, i)
					}
				}
				r.drop(1, hi)
			default:
				logs := entries(next, rapid.Uint64Range(1, 900).Draw(t, "n"), 1)
				r.add(logs)
				for _, l := range logs {
					model[l.Index] = l
				}
				next += uint64(len(logs))
				if r.get(next-1) == nil {
					t.Fatalf("the newest entry %d is not held", next-1)
				}
			}
			for i := range next + 2 {
				if got := r.get(i); got != nil && got != model[i] {
					t.Fatalf("entry %d is %v, want %v", i, got, model[i])
				}
			}
		}
	})
}
