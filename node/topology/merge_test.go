package topology

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func hint(preferred bool, ids ...int) Hint { return Hint{NodesOf(ids...), preferred} }

func TestMerge(t *testing.T) {
	two := NodesOf(0, 1)
	type want struct {
		hint     Hint
		admitted bool
	}
	for name, c := range map[string]struct {
		machine                         Nodes
		providers                       []Hints
		bestEffort, restricted, oneNode want
	}{
		"no provider": {two, nil,
			want{hint(true, 0, 1), true}, want{hint(true, 0, 1), true}, want{hint(true), true}},
		"no preference": {two, []Hints{{"gpu": nil}},
			want{hint(true, 0, 1), true}, want{hint(true, 0, 1), true}, want{hint(true), true}},
		"impossible": {two, []Hints{{"gpu": {}}},
			want{hint(false, 0, 1), true}, want{hint(false, 0, 1), false}, want{hint(false), false}},
		"one provider, either node": {two, []Hints{{"cpu": {hint(true, 1), hint(true, 0), hint(false, 0, 1)}}},
			want{hint(true, 0), true}, want{hint(true, 0), true}, want{hint(true, 0), true}},
		"same node": {two, []Hints{{"cpu": {hint(true, 0), hint(true, 1), hint(false, 0, 1)}}, {"gpu": {hint(true, 1), hint(false, 0, 1)}}},
			want{hint(true, 1), true}, want{hint(true, 1), true}, want{hint(true, 1), true}},
		"different nodes": {two, []Hints{{"cpu": {hint(true, 0), hint(false, 0, 1)}}, {"gpu": {hint(true, 1), hint(false, 0, 1)}}},
			want{hint(false, 0), true}, want{hint(false, 0), false}, want{hint(false), false}},
		"needs both nodes": {two, []Hints{{"cpu": {hint(true, 0, 1)}}, {"gpu": {hint(true, 0, 1)}}},
			want{hint(true, 0, 1), true}, want{hint(true, 0, 1), true}, want{hint(false), false}},
		"one needs both": {two, []Hints{{"cpu": {hint(true, 0, 1)}}, {"gpu": {hint(true, 1), hint(false, 0, 1)}}},
			want{hint(false, 0, 1), true}, want{hint(false, 0, 1), false}, want{hint(false), false}},
		"no set in common": {two, []Hints{{"cpu": {hint(true, 0)}}, {"gpu": {hint(true, 1)}}},
			want{hint(false, 0, 1), true}, want{hint(false, 0, 1), false}, want{hint(false), false}},
		"two resources of a provider": {NodesOf(0, 1, 2, 3), []Hints{{"a": {hint(true, 0, 1), hint(true, 2, 3)}, "b": {hint(true, 2, 3)}}},
			want{hint(true, 2, 3), true}, want{hint(true, 2, 3), true}, want{hint(false), false}},
		"as many nodes as the most demanding": {NodesOf(0, 1, 2, 3),
			[]Hints{{"a": {hint(true, 0, 1), hint(false, 0, 1, 2)}}, {"b": {hint(true, 0), hint(false, 0, 1), hint(false, 0, 1, 2, 3)}}},
			want{hint(false, 0, 1), true}, want{hint(false, 0, 1), false}, want{hint(false), false}},
	} {
		for policy, want := range map[Policy]want{BestEffort: c.bestEffort, Restricted: c.restricted, SingleNUMANode: c.oneNode} {
			t.Run(name+"/"+string(policy), func(t *testing.T) {
				got, admitted := Merge(policy, c.machine, c.providers)
				if got != want.hint || admitted != want.admitted {
					t.Errorf("got %v %v admitted %t, want %v %v %t", got.Nodes.IDs(), got.Preferred, admitted, want.hint.Nodes.IDs(), want.hint.Preferred, want.admitted)
				}
			})
		}
	}
	if got, admitted := Merge(None, two, []Hints{{"gpu": {}}}); !admitted || got.Nodes != 0 {
		t.Errorf("policy none: %+v %t", got, admitted)
	}
}

// bruteForce goes through every combination of hints.
func bruteForce(machine Nodes, lists [][]Hint) Hint {
	widest := 0
	for _, l := range lists {
		widest = max(widest, narrowest(l))
	}
	var all []Hint
	var walk func(i int, picked []Hint)
	walk = func(i int, picked []Hint) {
		if i < len(lists) {
			for _, h := range lists[i] {
				walk(i+1, append(picked[:len(picked):len(picked)], h))
			}
			return
		}
		h := Hint{machine, true}
		var named []Nodes
		for _, p := range picked {
			h.Preferred = h.Preferred && p.Preferred
			if p.Nodes != 0 {
				h.Nodes &= p.Nodes
				named = append(named, p.Nodes)
				h.Preferred = h.Preferred && p.Nodes == named[0]
			}
		}
		if h.Nodes != 0 {
			all = append(all, h)
		}
	}
	walk(0, nil)
	if len(all) == 0 {
		return Hint{Nodes: machine}
	}
	return slices.MinFunc(all, func(a, b Hint) int { return compareHints(a, b, widest) })
}

func TestChoiceIsThatOfAllCombinations(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		machine := NodesOf(0, 1, 2, 3)
		lists := make([][]Hint, 1+random.IntN(3))
		for i := range lists {
			for range 1 + random.IntN(5) {
				lists[i] = append(lists[i], Hint{Nodes(random.IntN(16)), random.IntN(2) == 0})
			}
		}
		if got, want := choose(machine, lists), bruteForce(machine, lists); got != want {
			t.Fatalf("%v: got %+v, want %+v", lists, got, want)
		}
	}
}

func TestSubsetsComeSmallestFirst(t *testing.T) {
	if got := fmt.Sprint(NodesOf(0, 2).Subsets()); got != fmt.Sprint([]Nodes{1, 4, 5}) {
		t.Error(got)
	}
	if n := NodesOf(-1, 3, 64); !n.Has(3) || n.Has(64) || n.Has(-1) || n.Count() != 1 {
		t.Error(n)
	}
}
