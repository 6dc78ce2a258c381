package connlimit

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestTurnsGoRoundTheGroups(t *testing.T) {
	turns := NewTurns[string, string](1)
	if !turns.Take("a", "a1") {
		t.Fatal("a free place was not given")
	}
	for _, w := range []string{"a2", "a3", "a4", "b1", "c1", "b2"} {
		if turns.Take(w[:1], w) {
			t.Fatalf("%s has a place that is taken", w)
		}
	}
	if !turns.Drop("a", "a3") || turns.Drop("a", "a3") || !turns.Drop("c", "c1") {
		t.Error("dropped wrongly")
	}
	var got []string
	for w, ok := turns.Done(); ok; w, ok = turns.Done() {
		got = append(got, w)
	}
	if want := []string{"a2", "b1", "a4", "b2"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if !turns.Take("b", "b3") || turns.Waiting() != 0 {
		t.Error("the place is lost")
	}
}

// TestTurnsAreFair: never more work than there are places, no place is free while a member waits, within a group the first is
// first, and no group is served twice while another waits.
func TestTurnsAreFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		places := rapid.IntRange(1, 3).Draw(t, "places")
		turns := NewTurns[int, int](places)
		working, next := 0, 0
		waiting := map[int][]int{}
		skipped := map[int]map[int]int{} // how often another group was served while a group waited
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			key := rapid.IntRange(0, 3).Draw(t, "group")
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0, 1:
				next++
				if turns.Take(key, next) {
					working++
				} else {
					if len(waiting[key]) == 0 {
						skipped[key] = map[int]int{}
					}
					waiting[key] = append(waiting[key], next)
				}
			case 2:
				if q := waiting[key]; len(q) > 0 {
					i := rapid.IntRange(0, len(q)-1).Draw(t, "who")
					if !turns.Drop(key, q[i]) {
						t.Fatal("one that waits is not known")
					}
					waiting[key] = slices.Delete(q, i, i+1)
				}
			default:
				if working == 0 {
					continue
				}
				w, ok := turns.Done()
				if !ok {
					working--
					break
				}
				served := -1
				for g, q := range waiting {
					if len(q) > 0 && q[0] == w {
						served = g
					}
				}
				if served < 0 {
					t.Fatalf("%d was served, and was not the first of a group", w)
				}
				waiting[served] = waiting[served][1:]
				skipped[served] = map[int]int{}
				for g, q := range waiting {
					if g == served || len(q) == 0 {
						continue
					}
					if skipped[g][served]++; skipped[g][served] > 1 {
						t.Fatalf("group %d was served twice while group %d waited", served, g)
					}
				}
			}
			n := 0
			for _, q := range waiting {
				n += len(q)
			}
			if working > places || n > 0 && working < places || n != turns.Waiting() {
				t.Fatalf("%d work at %d places, %d wait, %d counted", working, places, n, turns.Waiting())
			}
		}
	})
}
