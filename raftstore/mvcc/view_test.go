package mvcc

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestAViewCountsWhatItHolds: however many keys a range has, and wherever it begins and ends, the count is what walking
// over it finds.
func TestAViewCountsWhatItHolds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{0, 1, countWalk, countWalk + 1, 20_000} {
		all := &tree{}
		for range size {
			k := fmt.Sprintf("/registry/%c/%05d", 'a'+r.IntN(3), r.IntN(50_000))
			all.Set(k, &KeyValue{Key: k})
		}
		v := &View{tree: copyTree(all)}
		keys := []string{"", "/", "/registry/", "/registry/a/", "/registry/b", "/registry/b/2", "/registry/c/49999", "/registry0", "zzz"}
		for range 20 {
			keys = append(keys, fmt.Sprintf("/registry/%c/%05d", 'a'+r.IntN(3), r.IntN(50_000)))
		}
		for _, start := range keys {
			for _, end := range append(keys, PrefixEnd(start), fromKeyEnd) {
				want := 0
				v.Ascend(start, end, func(*KeyValue) bool { want++; return true })
				if got := v.Count(start, end); got != want {
					t.Fatalf("%d keys: %d of them in [%q, %q), want %d", size, got, start, end, want)
				}
			}
		}
	}
}
