package member

import (
	"cmp"
	"fmt"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var planNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// viewOf reads a server from its name: a letter, then what it is.
//
//	L leader, V voter with contact, d dead voter, u voter away for a second,
//	x voter that departed, r ready learner, s learner healthy for a second,
//	c learner that catches up, g learner gone for a minute, G for two days
func viewOf(i int, kind rune) ServerView {
	v := ServerView{ID: fmt.Sprintf("%c%d", kind, i), Gossip: StateAlive, Contact: true, Healthy: true, Since: planNow.Add(-time.Hour)}
	away := func(d time.Duration) {
		v.Gossip, v.Contact, v.Healthy, v.Gone = StateFailed, false, false, planNow.Add(-d)
	}
	switch kind {
	case 'L':
		v.Voter, v.Leader = true, true
	case 'V':
		v.Voter = true
	case 'd':
		v.Voter = true
		away(time.Minute)
	case 'u':
		v.Voter = true
		away(time.Second)
	case 'x':
		v.Voter, v.Departed = true, true
		away(0)
		v.Gossip = StateLeft
	case 'r':
	case 's':
		v.Since = planNow.Add(-time.Second)
	case 'c':
		v.Healthy, v.Busy = false, "catching up"
	case 'g':
		away(time.Minute)
	case 'G':
		away(48 * time.Hour)
	default:
		panic(kind)
	}
	return v
}

func viewsOf(kinds string) (out []ServerView) {
	for i, k := range kinds {
		out = append(out, viewOf(i, k))
	}
	return out
}

func TestPlan(t *testing.T) {
	for kinds, want := range map[string]string{
		"L":         "",
		"Lr":        "", // standby
		"Ls":        "",
		"Lrr":       "promote r1",
		"Lrs":       "", // both, one after the other, when both are ready
		"Lrc":       "",
		"LVr":       "promote r2",
		"LVs":       "",
		"LVc":       "",
		"LV":        "demote V1", // two need both
		"LVg":       "demote V1",
		"LVu":       "",
		"LVV":       "",
		"LVVr":      "", // standby
		"LVVrr":     "promote r3",
		"LVVVr":     "promote r4",
		"LVVV":      "demote V1",
		"LVVVc":     "",
		"LVd":       "", // kept until there is a replacement
		"LVx":       "",
		"LVu r":     "",
		"LVdr":      "promote r3",
		"LVxr":      "promote r3",
		"LVds":      "",
		"LVVd":      "remove d3",
		"LVVdr":     "remove d3",
		"Lud":       "", // one voter with contact of three is no quorum
		"Ldd":       "",
		"Lddrr":     "",
		"LVVVd":     "remove d4",
		"LVVVx":     "remove x4",
		"LVVVu":     "",
		"LVVdd":     "remove d3",
		"LVVddr":    "promote r5",
		"LVVVVr":    "",
		"LVVVVrr":   "promote r5",
		"LVVVVVVrr": "", // seven are enough
		"LVVVVVVr":  "",
		"LVVVVVdr":  "promote r7",
		"LVVg":      "",
		"LVVG":      "remove G3",
		"VVV":       "", // no leader is in sight
	} {
		d := plan(viewsOf(strings.ReplaceAll(kinds, " ", "")), DefaultPolicy(), planNow)
		got := ""
		if d.Action != nil {
			got = fmt.Sprintf("%s %s", d.Action.Verb, d.Action.ID)
		}
		if got != want {
			t.Errorf("%s: plan is %q, want %q", kinds, got, want)
		}
	}
}

func TestPlanSaysWhatItWaitsFor(t *testing.T) {
	for kinds, want := range map[string]string{
		"Lr":  "standby: a third server makes the cluster survive a loss",
		"LVc": "catching up",
		"LVd": "dead; stays a voter until a replacement has caught up",
		"Ldd": "dead; there is no quorum to remove it",
		"LVs": "caught up; a voter when it has been so for 2s",
		"LVu": "no contact; counts as dead when it stays away",
	} {
		vs := viewsOf(kinds)
		d := plan(vs, DefaultPolicy(), planNow)
		if got := d.Waits[vs[len(vs)-1].ID]; got != want {
			t.Errorf("%s: waits for %q, want %q", kinds, got, want)
		}
	}
	if d := plan(viewsOf("LVVu"), DefaultPolicy(), planNow); !d.Again.Equal(planNow.Add(29 * time.Second)) {
		t.Errorf("looks again at %v", d.Again)
	}
	if d := plan(viewsOf("LVV"), DefaultPolicy(), planNow); !d.Again.IsZero() || d.Watch {
		t.Errorf("at rest it wants to look again at %v, watch %v", d.Again, d.Watch)
	}
}

// counts are the voters and those of them that are live.
func counts(vs []ServerView) (voters, live int) {
	for _, v := range vs {
		if v.Voter {
			voters++
			if v.Contact {
				live++
			}
		}
	}
	return voters, live
}

// carryOut applies a step to the configuration.
func carryOut(vs []ServerView, act Action) []ServerView {
	vs = slices.Clone(vs)
	i := slices.IndexFunc(vs, func(v ServerView) bool { return v.ID == act.ID })
	switch act.Verb {
	case Promote:
		vs[i].Voter = true
	case Demote:
		vs[i].Voter = false
	case Remove:
		vs = slices.Delete(vs, i, i+1)
	}
	return vs
}

func drawServers(t *rapid.T) []ServerView {
	kinds := rapid.SliceOfN(rapid.SampledFrom([]rune("VVVVduxrscgG")), 0, 9).Draw(t, "servers")
	return viewsOf("L" + string(kinds))
}

func TestNoPlanCostsTheQuorum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vs := drawServers(t)
		p := DefaultPolicy()
		voters, live := counts(vs)
		d := plan(vs, p, planNow)
		if d.Action == nil {
			return
		}
		if live < quorum(voters) {
			t.Fatalf("a step without a quorum: %v", *d.Action)
		}
		after := carryOut(vs, *d.Action)
		v, l := counts(after)
		if l < quorum(v) {
			t.Fatalf("%v leaves %d live of %d voters", *d.Action, l, v)
		}
		if voters-v > 1 || v-voters > 1 || len(vs)-len(after) > 1 {
			t.Fatalf("%v changes more than one", *d.Action)
		}
		who := vs[slices.IndexFunc(vs, func(v ServerView) bool { return v.ID == d.Action.ID })]
		switch d.Action.Verb {
		case Remove:
			if who.Contact || who.Leader || who.Gossip == StateAlive {
				t.Fatalf("removes %s, which is not dead", who.ID)
			}
			if who.Voter && voters >= p.MinQuorum && v < p.MinQuorum {
				t.Fatalf("%d voters are left of %d", v, voters)
			}
		case Promote:
			if !who.Healthy || who.Voter {
				t.Fatalf("promotes %s", who.ID)
			}
		case Demote:
			if who.Leader || !who.Voter || voters%2 == 1 {
				t.Fatalf("demotes %s of %d voters", who.ID, voters)
			}
		}
		// With the losses it tolerates on top there is still a quorum.
		if v, l := counts(after); l-quorum(v) < min(live-quorum(voters), 0) {
			t.Fatalf("%v makes the cluster more fragile", *d.Action)
		}
	})
}

func TestPlansComeToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vs := drawServers(t)
		// Time passes: learners that were nearly ready are ready, and servers that were nearly dead are dead.
		for i := range vs {
			if vs[i].ID[0] == 's' {
				vs[i].Since = vs[i].Since.Add(-time.Hour)
			}
		}
		p := DefaultPolicy()
		for step := 0; ; step++ {
			d := plan(vs, p, planNow)
			if d.Action == nil {
				break
			}
			if step > 30 {
				t.Fatalf("no rest: next would be %v", *d.Action)
			}
			vs = carryOut(vs, *d.Action)
		}
		voters, live := counts(vs)
		busy := slices.ContainsFunc(vs, func(v ServerView) bool { return v.ID[0] == 'u' || v.ID[0] == 'c' })
		if !busy && live == voters && voters%2 == 0 {
			t.Fatalf("rests with %d voters", voters)
		}
		ready := 0
		for _, v := range vs {
			if !v.Voter && v.Healthy {
				ready++
			}
		}
		if !busy && live >= quorum(voters) && voters < p.MaxVoters-1 && ready > 1 {
			t.Fatalf("rests with %d voters and %d servers that could be", voters, ready)
		}
		if live < voters && live >= quorum(voters) && !busy && ready > 0 {
			t.Fatalf("a dead voter stays although %d could take its place", ready)
		}
	})
}

func TestPlanIsPure(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "plan.go", nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range f.Imports {
		if !slices.Contains([]string{`"cmp"`, `"fmt"`, `"slices"`, `"time"`}, i.Path.Value) {
			t.Errorf("plan.go imports %s", i.Path.Value)
		}
	}
	a := viewsOf("LVVdrrg")
	first := plan(a, DefaultPolicy(), planNow)
	slices.SortFunc(a, func(x, y ServerView) int { return cmp.Compare(y.ID, x.ID) })
	if second := plan(a, DefaultPolicy(), planNow); *first.Action != *second.Action {
		t.Errorf("the order of servers matters: %v, %v", *first.Action, *second.Action)
	}
}
