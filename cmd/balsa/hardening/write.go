package hardening

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Write prints the rows as a table, then the fix of each failure, then the counts.
func Write(w io.Writer, rows []Row) error {
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(out, "CONTROL\tRESULT\tTITLE\tDETAIL")
	count := map[Result]int{}
	for _, r := range rows {
		count[r.Result]++
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\n", r.ID, r.Result, r.Title, r.Detail)
	}
	if err := out.Flush(); err != nil {
		return err
	}
	for _, r := range rows {
		if r.Mend != "" {
			fmt.Fprintf(w, "to fix %s: %s\n", r.ID, r.Mend)
		}
	}
	_, err := fmt.Fprintf(w, "%d controls: %d pass, %d fail, %d not applicable\n", len(rows), count[Pass], count[Fail], count[NotApplicable])
	return err
}

// Failures counts the rows that failed.
func Failures(rows []Row) int {
	n := 0
	for _, r := range rows {
		if r.Result == Fail {
			n++
		}
	}
	return n
}
