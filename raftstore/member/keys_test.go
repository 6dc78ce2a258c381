package member

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestKeysOneByOne(t *testing.T) {
	g, err := New(Config{Name: "a", Meta: serverMeta(1), Keys: [][]byte{testKey(1)}})
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := g.UseKey(testKey(2)); !errors.Is(err, ErrKey) {
		t.Errorf("use of a key that was not added: %v", err)
	}
	if err := g.RemoveKey(testKey(1)); !errors.Is(err, ErrKey) {
		t.Errorf("removal of the key in use: %v", err)
	}
	if err := g.AddKey([]byte("short")); !errors.Is(err, ErrKey) {
		t.Errorf("a short key: %v", err)
	}
	must(g.AddKey(testKey(2)))
	must(g.UseKey(testKey(2)))
	must(g.RemoveKey(testKey(1)))
	if got := g.self.Keys; !slices.Equal(got, []KeyID{Fingerprint(testKey(2))}) || len(g.keys.GetKeys()) != 1 {
		t.Errorf("knows %v", got)
	}
	must(g.AddKey(testKey(3)))
	must(g.AddKey(testKey(4)))
	must(g.AddKey(testKey(5)))
	if err := g.AddKey(testKey(6)); !errors.Is(err, ErrKey) {
		t.Errorf("a fifth key: %v", err)
	}
	must(g.Rekey(testKey(7), [][]byte{testKey(2)}))
	if got := g.self.Keys; !slices.Equal(got, []KeyID{Fingerprint(testKey(7)), Fingerprint(testKey(2))}) {
		t.Errorf("knows %v", got)
	}
}

func TestPlanRotation(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a, b := KeyID{1}, KeyID{2}
	member := func(name string, state State, away time.Duration, keys ...KeyID) Member {
		return Member{Meta: Meta{Name: name, Role: RoleServer, Keys: keys}, State: state, Since: now.Add(-away)}
	}
	for _, c := range []struct {
		what    string
		ring    Ring
		members []Member
		want    Ring
		wait    string
	}{
		{"added first", Ring{a, []KeyID{a}}, nil, Ring{a, []KeyID{a, b}}, ""},
		{"used when all know", Ring{a, []KeyID{a, b}}, []Member{member("x", StateAlive, 0, a, b)}, Ring{b, []KeyID{a, b}}, ""},
		{"not before", Ring{a, []KeyID{a, b}}, []Member{member("x", StateAlive, 0, a, b), member("y", StateAlive, 0, a)}, Ring{a, []KeyID{a, b}}, "y does not know"},
		{"removed when all use", Ring{b, []KeyID{a, b}}, []Member{member("x", StateAlive, 0, b, a)}, Ring{b, []KeyID{b}}, ""},
		{"not before", Ring{b, []KeyID{a, b}}, []Member{member("x", StateAlive, 0, a, b)}, Ring{b, []KeyID{a, b}}, "x still encrypts"},
		{"a rebooting server is waited for", Ring{b, []KeyID{a, b}}, []Member{member("x", StateFailed, time.Minute, a)}, Ring{b, []KeyID{a, b}}, "x is away"},
		{"not for ever", Ring{b, []KeyID{a, b}}, []Member{member("x", StateFailed, 2*time.Hour, a)}, Ring{b, []KeyID{b}}, ""},
		{"over", Ring{b, []KeyID{b}}, []Member{member("x", StateAlive, 0, b)}, Ring{b, []KeyID{b}}, ""},
	} {
		next, wait := PlanRotation(c.ring, b, c.members, now)
		if next.Primary != c.want.Primary || !slices.Equal(next.Keys, c.want.Keys) || !strings.HasPrefix(wait, c.wait) || (c.wait == "") != (wait == "") {
			t.Errorf("%s: %v %q", c.what, next, wait)
		}
	}
}

func TestConfigReportsEveryFault(t *testing.T) {
	_, err := New(Config{BindAddr: "host", BindPort: 70000, Keys: [][]byte{{1}}, Timing: Timing{ProbeInterval: 1}})
	for _, want := range []string{"node name", "role", "cluster ID", "gossip key 0", "bind address", "port 70000", "timing"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no word about %s: %v", want, err)
		}
	}
}
