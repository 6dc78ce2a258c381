package member

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func fullMeta() Meta {
	return Meta{
		ServerID: serverID(1), Role: RoleServer, APIAddr: strings.Repeat("a", 248) + ":6443", Version: strings.Repeat("v", 64),
		Protocol: 1<<31 - 1, Generation: 1<<63 - 1, ClusterID: testCluster, Keys: make([]KeyID, maxKeys), Leaving: Departing,
	}
}

func TestTheLargestMetaFits(t *testing.T) {
	m := fullMeta()
	raw, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d bytes", len(raw), MaxMeta)
	if got, err := DecodeMeta(raw); err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestMetaOfNewerVersionsIsRead(t *testing.T) {
	raw, err := serverMeta(1).Encode()
	if err != nil {
		t.Fatal(err)
	}
	newer := append(raw, 99, 3, 'n', 'e', 'w')
	if m, err := DecodeMeta(newer); err != nil || !reflect.DeepEqual(m, serverMeta(1)) {
		t.Errorf("with a field of a newer version: %+v, %v", m, err)
	}
	newer[0]++
	if _, err := DecodeMeta(newer); !errors.Is(err, ErrMeta) {
		t.Errorf("with a newer layout: %v", err)
	}
}

func TestBadMetaIsRefused(t *testing.T) {
	for what, change := range map[string]func(*Meta){
		"role":       func(m *Meta) { m.Role = "king" },
		"agent":      func(m *Meta) { m.Role, m.ServerID = RoleAgent, "" },
		"server ID":  func(m *Meta) { m.ServerID = "1.2.3.4" },
		"no ID":      func(m *Meta) { m.ServerID = "" },
		"cluster ID": func(m *Meta) { m.ClusterID = strings.ToUpper(testCluster) },
		"address":    func(m *Meta) { m.APIAddr = "a\x1b[2J:1" },
		"length":     func(m *Meta) { m.APIAddr = strings.Repeat("a", 256) },
		"version":    func(m *Meta) { m.Version = strings.Repeat("v", 65) },
		"generation": func(m *Meta) { m.Generation = -1 },
		"keys":       func(m *Meta) { m.Keys = make([]KeyID, maxKeys+1) },
	} {
		m := fullMeta()
		change(&m)
		if _, err := m.Encode(); !errors.Is(err, ErrMeta) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestMetaRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := Meta{
			Role: RoleServer, ServerID: rapid.StringMatching("[0-9a-f]{32}").Draw(t, "id"),
			ClusterID: testCluster, APIAddr: rapid.StringMatching("[a-z0-9.:]{0,255}").Draw(t, "addr"), Version: rapid.StringMatching("[ -~]{0,64}").Draw(t, "version"),
			Protocol: rapid.IntRange(0, 1<<31-1).Draw(t, "protocol"), Generation: rapid.Int64Range(0, 1<<63-1).Draw(t, "generation"),
			Leaving: Leaving(rapid.IntRange(0, 2).Draw(t, "leaving")),
		}
		raw, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeMeta(raw); err != nil || !reflect.DeepEqual(got, m) {
			t.Fatalf("%+v became %+v, %v", m, got, err)
		}
	})
}

func FuzzDecodeMeta(f *testing.F) {
	for _, m := range []Meta{fullMeta(), serverMeta(1)} {
		raw, err := m.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
		f.Add(raw[:len(raw)-1])
	}
	f.Add([]byte{metaLayout, tagProtocol, 10, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, in []byte) {
		m, err := DecodeMeta(in)
		if err != nil {
			if !errors.Is(err, ErrMeta) {
				t.Fatalf("an error of another kind: %v", err)
			}
			return
		}
		raw, err := m.Encode() // what was taken can be said again
		if err != nil {
			t.Fatalf("%+v cannot be encoded: %v", m, err)
		}
		if again, err := DecodeMeta(raw); err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%+v became %+v, %v", m, again, err)
		}
	})
}
