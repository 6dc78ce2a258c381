package raftstore

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/hashicorp/raft"
)

func FuzzDecodeDirMeta(f *testing.F) {
	f.Add([]byte(`{"format":1,"clusterID":"c","serverID":"s"}`))
	f.Add([]byte(`{"format":2,"clusterID":"c","serverID":"s","generation":3,"joined":true}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decodeDirMeta(data)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerVersion) {
				t.Fatal(err)
			}
			return
		}
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := decodeDirMeta(text); err != nil || *again != *m {
			t.Fatalf("%+v became %+v, %v", m, again, err)
		}
	})
}

func FuzzDecodeSnapshotMeta(f *testing.F) {
	text, err := json.Marshal(raft.SnapshotMeta{
		Version: 1, ID: "2-7-1", Index: 7, Term: 2, ConfigurationIndex: 1,
		Configuration: raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "a"}}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("2-7-1", text)
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		m, err := decodeSnapshotMeta(name, data)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if m.ID != name || len(m.Configuration.Servers) == 0 || m.ConfigurationIndex > m.Index {
			t.Fatalf("%+v", m)
		}
	})
}
