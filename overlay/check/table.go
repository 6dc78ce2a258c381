package check

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// column is a column of the table of node pairs.
type column struct {
	title string
	kinds []Kind
}

var columns = []column{
	{"NODE", []Kind{Node}}, {"POD", []Kind{Pod, PodUDP}}, {"POD-NODE", []Kind{PodNode}}, {"NODE-POD", []Kind{NodePod}},
	{"SERVICE", []Kind{Service}}, {"NODEPORT", []Kind{NodePort}}, {"SIZE", []Kind{MTU}}, {"POLICY", []Kind{Denied}},
}

// mostRows bounds the paths without faults that are shown.
const mostRows = 36

// Write prints the tables and the findings. With all set, it also prints every path without faults.
func Write(w io.Writer, r *Report, findings []Finding, all bool) error {
	m := newMatrix(r)
	if err := writePairs(w, m, all); err != nil {
		return err
	}
	if err := writeNames(w, r, m); err != nil {
		return err
	}
	if len(findings) == 0 {
		_, err := fmt.Fprintln(w, "\nnothing is broken")
		return err
	}
	fmt.Fprintln(w)
	for _, f := range findings {
		if _, err := fmt.Fprintln(w, "BROKEN  "+f.String()); err != nil {
			return err
		}
	}
	return nil
}

func writePairs(w io.Writer, m *matrix, all bool) error {
	pairs, fine := m.pairs(), 0
	shown := slices.DeleteFunc(slices.Clone(pairs), func(p pair) bool { return !m.broken(p) })
	if all || len(pairs) <= mostRows {
		shown = pairs
	}
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprint(out, "FROM\tTO")
	for _, c := range columns {
		fmt.Fprint(out, "\t", c.title)
	}
	fmt.Fprintln(out)
	for _, p := range shown {
		fmt.Fprintf(out, "%s\t%s", p.from, p.to)
		for _, c := range columns {
			fmt.Fprint(out, "\t", m.cell(p, c))
		}
		fmt.Fprintln(out)
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if fine = len(pairs) - len(shown); fine > 0 {
		_, err := fmt.Fprintf(w, "%d of %d paths have no fault and are not shown (--all shows them)\n", fine, len(pairs))
		return err
	}
	return nil
}

func (m *matrix) broken(p pair) bool {
	for _, r := range m.byPair[p] {
		if !r.OK {
			return true
		}
	}
	return false
}

func (m *matrix) cell(p pair, c column) string {
	tried := false
	for _, k := range c.kinds {
		r := m.byPair[p][k]
		switch {
		case r == nil:
			continue
		case !r.OK && r.Size != nil && r.Size.Passes > 0:
			return fmt.Sprintf("≤%d", r.Size.Passes)
		case !r.OK:
			return "FAILS"
		case r.Size != nil:
			return fmt.Sprint(r.Size.Passes)
		}
		tried = true
	}
	if !tried {
		return "-"
	}
	return "ok"
}

func writeNames(w io.Writer, r *Report, m *matrix) error {
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(out, "\nON\tDNS\tOUTSIDE NAMES\tPOD ADDRESS\tPOD MTU")
	for _, n := range sortedNodes(r) {
		at, address, mtu := pair{n.Target.Name, ""}, "-", "-"
		if n.Opened != nil {
			mtu = fmt.Sprint(n.Opened.MTU)
			if len(n.Opened.Addresses) > 0 {
				address = n.Opened.Addresses[0].String()
			}
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\n", n.Target.Name, m.cell(at, column{kinds: []Kind{DNS}}), m.cell(at, column{kinds: []Kind{Outside}}), address, mtu)
	}
	return out.Flush()
}
