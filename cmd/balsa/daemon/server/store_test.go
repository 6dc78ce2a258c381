package server

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/raftlog"
)

func TestAServerKeepsTheKindOfLogItBeganWith(t *testing.T) {
	for i, kind := range raftlog.Kinds {
		dir, other := filepath.Join(t.TempDir(), "store"), raftlog.Kinds[1-i]
		if err := checkLogKind(dir, kind); err != nil {
			t.Fatal("a new directory takes either kind:", err)
		}
		s, err := raftstore.Open(raftstore.Config{Dir: dir, LogKind: kind})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for _, same := range []raftlog.Kind{kind, ""} {
			if err := checkLogKind(dir, same); err != nil {
				t.Errorf("%q on a directory of %s: %v", same, kind, err)
			}
		}
		if err := checkLogKind(dir, other); err == nil || !strings.Contains(err.Error(), "--raft-log="+string(kind)) {
			t.Errorf("%s on a directory of %s: %v", other, kind, err)
		}
	}
}
