package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// side says whose samples they are.
type side int

const (
	ours side = iota
	theirs
)

// figure names one row of the table. Aim is text: what the project wants.
type figure struct {
	name, unit, aim string
}

type row struct {
	figure
	samples [2][]float64 // by side
}

// table keeps rows in the order in which their first sample came.
type table struct {
	rows     []*row
	upstream bool // whether there are columns for theirs
}

func (t *table) add(s side, f figure, samples ...float64) {
	i := slices.IndexFunc(t.rows, func(r *row) bool { return r.name == f.name })
	if i < 0 {
		i = len(t.rows)
		t.rows = append(t.rows, &row{figure: f})
	}
	t.rows[i].samples[s] = append(t.rows[i].samples[s], samples...)
}

// print writes the table; the ratio is our median by theirs.
func (t *table) print(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	head := "| figure\t| min\t| median\t| max\t| aim\t| unit\t"
	if t.upstream {
		head += "| upstream (median)\t| ratio\t"
	}
	fmt.Fprintln(out, head+"|")
	fmt.Fprintln(out, strings.Repeat("| ---\t", strings.Count(head, "\t"))+"|")
	for _, r := range t.rows {
		low, middle, high := summary(r.samples[ours])
		line := fmt.Sprintf("| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t", r.name, number(low), number(middle), number(high), r.aim, r.unit)
		if t.upstream {
			_, peer, _ := summary(r.samples[theirs])
			line += fmt.Sprintf("| %s\t| %s\t", number(peer), number(middle/peer))
		}
		fmt.Fprintln(out, line+"|")
	}
	return out.Flush()
}

func summary(samples []float64) (low, middle, high float64) {
	return quantile(samples, 0), median(samples), quantile(samples, 1)
}

func median(samples []float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// quantile is the nearest-rank quantile; NaN when there is no sample.
func quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// number shows three digits, and nothing where nothing was measured.
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
