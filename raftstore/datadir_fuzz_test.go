package raftstore

import (
	"encoding/json"
	"errors"
	"testing"
)

func FuzzDecodeDirMeta(f *testing.F) {
	f.Add([]byte(`{"format":1,"clusterID":"c","serverID":"s"}`))
	f.Add([]byte(`{"format":2,"clusterID":"c","serverID":"s","generation":3,"joined":true}`))
	f.Add([]byte(`{"format":2,"clusterID":"c","serverID":"s","log":"boltdb"}`))
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
