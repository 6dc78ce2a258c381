package main

import (
	"math"
	"strings"
	"testing"

	"github.com/balsahq/balsa/e2e/figures"
)

func TestSummary(t *testing.T) {
	for _, c := range []struct {
		samples           []float64
		low, middle, high float64
	}{
		{[]float64{3}, 3, 3, 3},
		{[]float64{4, 1}, 1, 2.5, 4},
		{[]float64{9, 1, 5}, 1, 5, 9},
	} {
		if low, middle, high := figures.Summary(c.samples); low != c.low || middle != c.middle || high != c.high {
			t.Errorf("summary of %v: %v %v %v, want %v %v %v", c.samples, low, middle, high, c.low, c.middle, c.high)
		}
	}
	if _, middle, _ := figures.Summary(nil); !math.IsNaN(middle) {
		t.Errorf("the median of nothing is %v", middle)
	}
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	if p99 := figures.Quantile(hundred, 0.99); p99 != 99 {
		t.Errorf("p99 of 1 to 100 is %v", p99)
	}
}

func TestTableShowsRatios(t *testing.T) {
	tab := figures.Table{Upstream: true}
	tab.Add(figures.Ours, figures.Of("a", "s", "1"), 1, 3)
	tab.Add(figures.Theirs, figures.Of("a", "s", "1"), 4)
	tab.Add(figures.Theirs, figures.Of("b", "s", ""), 7)
	var out strings.Builder
	if err := tab.Print(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 {
		t.Fatalf("want a head, a rule and two rows:\n%s", out.String())
	}
	if row := strings.Join(strings.Fields(lines[2]), " "); row != "| a | 1.00 | 2.00 | 3.00 | 1 | s | 4.00 | 0.500 |" {
		t.Errorf("row %q", row)
	}
	if row := strings.Join(strings.Fields(lines[3]), " "); row != "| b | | | | | s | 7.00 | |" {
		t.Errorf("row %q", row)
	}
}
