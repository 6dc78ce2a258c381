package main

import (
	"testing"
	"time"
)

func TestOutcomesAreRead(t *testing.T) {
	const text = `Total Read Ops: 1
Summary:
  Total:	1.5 secs.
  Requests/sec:	544.25

Latency distribution:
  50% in 0.092 secs.
  99% in 0.443 secs.
  99.9% in 0.495 secs.
Details:
Summary:
  Requests/sec:	100
Latency distribution:
  50% in 4.9e-05 secs.
`
	out, err := parseOutcomes(text)
	if err != nil || len(out) != 2 || out[0] != (outcome{544.25, 92, 443}) || out[1].rate != 100 || out[1].p50 != 0.049 {
		t.Errorf("%+v %v", out, err)
	}
	if sum(out) != 644.25 {
		t.Errorf("sum %v", sum(out))
	}
	for _, bad := range []string{"", "Summary:\n", text + "\nError distribution:\n  [3]\tno leader"} {
		if out, err := parseOutcomes(bad); err == nil {
			t.Errorf("%q: %+v", bad, out)
		}
	}
}

func TestGapIsTheLongest(t *testing.T) {
	now := time.Now()
	w := &writer{}
	for _, ms := range []int{-9000, -5000, -4990, -4200, -4190, -3000, -10} {
		w.acks = append(w.acks, now.Add(time.Duration(ms)*time.Millisecond))
	}
	if gap, over := w.gap(now.Add(-5 * time.Second)); gap < 2980*time.Millisecond || gap > 3*time.Second || over {
		t.Errorf("gap %s, over %v", gap, over)
	}
	for ms := -2000; ms < 0; ms += 5 {
		w.acks = append(w.acks[:len(w.acks):len(w.acks)], now.Add(time.Duration(ms)*time.Millisecond))
	}
	w.acks = w.acks[3:]
	if _, over := (&writer{acks: w.acks[4:]}).gap(now.Add(-1990 * time.Millisecond)); !over {
		t.Error("it is over")
	}
}

func TestScaleFiguresAreRead(t *testing.T) {
	got := parseMetrics("goos: linux\nBenchmarkScale-2   \t       1\t11833812345 ns/op\t       123.5 heap-B/key\t 0.5 restart-s\nPASS\n")
	if got["heap-B/key"] != 123.5 || got["restart-s"] != 0.5 || len(got) != 3 {
		t.Errorf("%v", got)
	}
}
