package tunnel

import (
	"strconv"
	"testing"
	"time"
)

func TestTheVerdictUsedLeastRecentlyIsForgotten(t *testing.T) {
	const size = 4
	v := newVerdicts(size)
	for i := range size {
		v.set(strconv.Itoa(i), verdict{wait: time.Duration(i + 1)})
	}
	v.get("0") // the oldest, but used since
	v.set("one more", verdict{proven: true})
	v.set("1 again", verdict{proven: true})
	for key, want := range map[string]verdict{
		"0": {wait: 1}, "1": {}, "2": {}, "3": {wait: 4}, "one more": {proven: true}, "1 again": {proven: true}, "never seen": {},
	} {
		if got := v.get(key); got != want {
			t.Errorf("%s: %+v, want %+v", key, got, want)
		}
	}
}

func TestATunnelsVerdictsAreBounded(t *testing.T) {
	tunnel := newWorld(t).tunnel
	for i := range maxVerdicts + 10 {
		if i%2 == 0 {
			tunnel.good(strconv.Itoa(i), true)
		} else {
			tunnel.noteBad(strconv.Itoa(i))
		}
	}
	if n := tunnel.verdicts.cache.Len(); n != maxVerdicts {
		t.Errorf("%d verdicts", n)
	}
	for i := range maxVerdicts + 10 {
		if known := tunnel.verdict(strconv.Itoa(i)) != (verdict{}); known != (i >= 10) {
			t.Fatalf("verdict %d is known: %v", i, known)
		}
	}
}
