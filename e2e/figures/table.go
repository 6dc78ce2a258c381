package figures

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Side is one of the two measured systems.
type Side int

// The two sides of a table.
const (
	Ours Side = iota
	Theirs
)

// Figure describes one row of a table. Aim is text: the value that the project wants.
type Figure struct {
	Name, Unit, Aim string
}

// Of returns a Figure.
func Of(name, unit, aim string) Figure { return Figure{Name: name, Unit: unit, Aim: aim} }

type row struct {
	Figure
	samples [2][]float64 // by side
	heading bool         // only Name is printed
}

// Table keeps rows in the order of their first sample.
type Table struct {
	Upstream bool // print columns for Theirs
	Spread   bool // print the smallest and the greatest sample of Theirs
	// Peer is the name of Theirs; "" means upstream.
	Peer string

	rows []*row
}

// Section adds a heading above the rows that follow.
func (t *Table) Section(heading string) {
	t.rows = append(t.rows, &row{Figure: Figure{Name: heading}, heading: true})
}

// Median returns the median of one side's samples of a figure; NaN if there are none.
func (t *Table) Median(s Side, name string) float64 {
	for _, r := range t.rows {
		if r.Name == name && !r.heading {
			_, median, _ := Summary(r.samples[s])
			return median
		}
	}
	return math.NaN()
}

// Add adds samples of one side to a figure's row.
func (t *Table) Add(s Side, f Figure, samples ...float64) {
	i := slices.IndexFunc(t.rows, func(r *row) bool { return r.Name == f.Name && !r.heading })
	if i < 0 {
		i = len(t.rows)
		t.rows = append(t.rows, &row{Figure: f})
	}
	t.rows[i].samples[s] = append(t.rows[i].samples[s], samples...)
}

// Print writes the table. The ratio is the median of Ours by the median of Theirs.
func (t *Table) Print(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	head := "| figure\t| min\t| median\t| max\t| aim\t| unit\t"
	if t.Upstream {
		head += "| " + cmp.Or(t.Peer, "upstream") + " (median)\t| ratio\t"
	}
	fmt.Fprintln(out, head+"|")
	fmt.Fprintln(out, strings.Repeat("| ---\t", strings.Count(head, "\t"))+"|")
	for _, r := range t.rows {
		if r.heading {
			fmt.Fprintln(out, "| **"+r.Name+"**\t"+strings.Repeat("| \t", strings.Count(head, "\t")-1)+"|")
			continue
		}
		low, middle, high := Summary(r.samples[Ours])
		line := fmt.Sprintf("| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t", r.Name, number(low), number(middle), number(high), r.Aim, r.Unit)
		if t.Upstream {
			least, peer, most := Summary(r.samples[Theirs])
			shown := number(peer)
			if t.Spread && len(r.samples[Theirs]) > 1 {
				shown += fmt.Sprintf(" [%s..%s]", number(least), number(most))
			}
			line += fmt.Sprintf("| %s\t| %s\t", shown, number(middle/peer))
		}
		fmt.Fprintln(out, line+"|")
	}
	return out.Flush()
}

// Summary returns the smallest sample, the median and the greatest.
func Summary(samples []float64) (low, middle, high float64) {
	return Quantile(samples, 0), median(samples), Quantile(samples, 1)
}

func median(samples []float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// Quantile returns the nearest-rank quantile, NaN without samples.
func Quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// number formats v with three digits, and NaN as "".
func number(v float64) string {
	switch abs := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return ""
	case abs >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case abs >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case abs >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}
