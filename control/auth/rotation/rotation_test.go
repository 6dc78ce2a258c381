package rotation

import (
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	at    = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	both  = Holds{Trusts: []string{"old", "new"}, IssuedBy: "old", Verifies: []string{"k1", "k2"}, Signs: "k1", PodsHold: "k1"}
	first = Holds{Trusts: []string{"old"}, IssuedBy: "old", Verifies: []string{"k1"}, Signs: "k1", PodsHold: "k1"}
	fresh = Holds{Trusts: []string{"new", "old"}, IssuedBy: "new", Verifies: []string{"k2", "k1"}, Signs: "k2", PodsHold: "k2"}
	last  = Holds{Trusts: []string{"new"}, IssuedBy: "new", Verifies: []string{"k2"}, Signs: "k2", PodsHold: "k2"}
)

// with changes one field of what a member holds.
func with(h Holds, change func(*Holds)) Holds {
	change(&h)
	return h
}

func server(name string, h Holds) Member { return Member{Name: name, Server: true, Holds: h} }

// agent is one, which says nothing of tokens that it verifies or signs.
func agent(name string, h Holds) Member {
	h.Verifies, h.Signs = nil, ""
	return Member{Name: name, Holds: h}
}

func record(p Phase) Record {
	return Record{Number: 1, Phase: p, Grace: time.Minute, Sealed: []byte("x"),
		CA: &Change{Old: "old", New: "new"}, TokenKey: &Change{Old: "k1", New: "k2"}}
}

func TestAPhaseEndsWhenEveryMemberHasConfirmedIt(t *testing.T) {
	stale := with(fresh, func(h *Holds) { h.PodsHold = "" })
	for _, c := range []struct {
		name    string
		record  Record
		members []Member
		secrets []string
		next    Phase    // "" when something is waited for
		waits   []string // names
	}{
		{"nobody knows yet", record(Trust), []Member{server("s1", first), agent("a1", first)}, nil, "", []string{"server s1", "agent a1"}},
		{"an agent is missing", record(Trust), []Member{server("s1", both), agent("a1", first)}, nil, "", []string{"agent a1"}},
		{"a member of an older version says nothing", record(Trust), []Member{server("s1", both), agent("a1", Holds{})}, nil, "", []string{"agent a1"}},
		{"a server does not verify the new key", record(Trust), []Member{server("s1", with(both, func(h *Holds) { h.Verifies = []string{"k1"} }))}, nil, "", []string{"server s1"}},
		{"all trust both", record(Trust), []Member{server("s1", both), agent("a1", both)}, nil, Issue, nil},
		{"without a member", record(Trust), nil, nil, Issue, nil},
		{"servers first", record(Issue), []Member{server("s1", both), server("s2", fresh), agent("a1", both)}, nil, "", []string{"server s1"}},
		{"then agents", record(Issue), []Member{server("s1", fresh), server("s2", fresh), agent("a1", both)}, nil, "", []string{"agent a1"}},
		{"then pods", record(Issue), []Member{server("s1", stale), agent("a1", stale)}, nil, "", []string{"server s1", "agent a1"}},
		{"then Secrets", record(Issue), []Member{server("s1", fresh), agent("a1", fresh)}, []string{"ns/a"}, "", []string{"secret ns/a"}},
		{"then programs in pods", record(Issue), []Member{server("s1", fresh), agent("a1", fresh)}, nil, Issue, nil},
		{"one still trusts the old", record(Retire), []Member{server("s1", last), agent("a1", fresh)}, nil, "", []string{"agent a1"}},
		{"one still verifies the old", record(Retire), []Member{server("s1", with(last, func(h *Holds) { h.Verifies = []string{"k2", "k1"} }))}, nil, "", []string{"server s1"}},
		{"all retired it", record(Retire), []Member{server("s1", last), agent("a1", last)}, nil, Done, nil},
		{"done", record(Done), []Member{server("s1", first)}, nil, "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			next, waits := c.record.Next(Facts{Members: c.members, StaleSecrets: c.secrets, Now: at})
			var names []string
			for _, w := range waits {
				names = append(names, w.Name)
				if w.Text == "" {
					t.Errorf("%s: nothing says what is missing", w.Name)
				}
			}
			if !slices.Equal(names, c.waits) {
				t.Errorf("waits for %q, want %q", names, c.waits)
			}
			if (next == nil) != (c.next == "") || next != nil && next.Phase != c.next {
				t.Errorf("next is %+v, want phase %q", next, c.next)
			}
		})
	}
}

func TestOldTokensCountForTheGraceAfterAllAreRefreshed(t *testing.T) {
	members := []Member{server("s1", fresh), agent("a1", fresh)}
	rec := record(Issue)
	next, _ := rec.Next(Facts{Members: members, Now: at})
	if next == nil || next.Phase != Issue || !next.Refreshed.Equal(at) {
		t.Fatalf("the moment is not recorded: %+v", next)
	}
	if again, waits := next.Next(Facts{Members: members, Now: at.Add(time.Minute - 1)}); again != nil || len(waits) != 1 || waits[0].Name != "grace" {
		t.Errorf("before the end of the grace: %+v, %v", again, waits)
	}
	if retire, _ := next.Next(Facts{Members: members, Now: at.Add(time.Minute)}); retire == nil || retire.Phase != Retire {
		t.Errorf("after the grace: %+v", retire)
	}
	rec = record(Issue)
	rec.TokenKey = nil
	if retire, _ := rec.Next(Facts{Members: members, Now: at}); retire == nil || retire.Phase != Retire {
		t.Errorf("a rotation of the CA alone waits for tokens: %+v", retire)
	}
}

func TestTheSealedKeysGoAtTheEnd(t *testing.T) {
	rec := record(Retire)
	next, _ := rec.Next(Facts{Members: []Member{server("s1", last)}, Now: at})
	if next.Sealed != nil || rec.Sealed == nil {
		t.Error("the private keys stay in the store, or the record in hand was changed")
	}
}

func TestWhatIsPassedOverIsNotWaitedFor(t *testing.T) {
	rec := record(Issue)
	members := []Member{server("s1", fresh), server("s2", first), agent("a1", first)}
	if _, waits := rec.Next(Facts{Members: members, Now: at}); len(waits) != 1 || waits[0].Name != "server s2" {
		t.Fatalf("waits for %v", waits)
	}
	if w := rec.ForAgents(members); w != (Wanted{}) {
		t.Errorf("agents are asked before all servers sign with the new keys: %+v", w)
	}
	rec.PassedOver = []string{"server s2"}
	if w := rec.ForAgents(members); w != (Wanted{IssuedBy: "new", PodsHold: "k2"}) {
		t.Errorf("agents are to have %+v", w)
	}
	if _, waits := rec.Next(Facts{Members: members, Now: at}); len(waits) != 1 || waits[0].Name != "agent a1" {
		t.Errorf("waits for %v", waits)
	}
	rec.PassedOver = append(rec.PassedOver, "agent a1", "grace")
	if next, waits := rec.Next(Facts{Members: members, Now: at}); next == nil || next.Phase != Retire {
		t.Errorf("%+v, %v", next, waits)
	}
}

func TestARotationOfOneKeyLooksAtThatAlone(t *testing.T) {
	rec := record(Trust)
	rec.TokenKey = nil
	only := Holds{Trusts: []string{"old", "new"}, IssuedBy: "old", Verifies: []string{"k1"}, Signs: "k1"}
	if next, waits := rec.Next(Facts{Members: []Member{server("s1", only)}, Now: at}); next == nil {
		t.Errorf("the CA: %v", waits)
	}
	rec = record(Trust)
	rec.CA = nil
	if next, waits := rec.Next(Facts{Members: []Member{server("s1", with(first, func(h *Holds) { h.Verifies = []string{"k1", "k2"} })), agent("a1", first)}, Now: at}); next == nil {
		t.Errorf("the key: %v", waits)
	}
}

func TestASummarySaysWhatAndHowFar(t *testing.T) {
	for p, want := range map[Phase]string{Trust: "phase 1 of 3", Issue: "phase 2 of 3", Retire: "phase 3 of 3", Done: "done"} {
		rec := record(p)
		if text := rec.Summary(); !strings.Contains(text, want) || !strings.Contains(text, "the cluster CA and the service-account key") {
			t.Errorf("%s: %s", p, text)
		}
	}
	if (*Record)(nil).Summary() == "" || (*Record)(nil).Running() {
		t.Error("no rotation")
	}
}
