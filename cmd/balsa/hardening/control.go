package hardening

import (
	"fmt"
	"slices"
	"strings"
)

// Result is the outcome of a control.
type Result string

// The results.
const (
	Pass          Result = "pass"
	Fail          Result = "fail"
	NotApplicable Result = "n/a"
)

// Verdict is the result of one control with its reason.
type Verdict struct {
	Result Result `json:"result"`
	Detail string `json:"detail,omitempty"`
}

func pass(format string, args ...any) Verdict { return Verdict{Pass, fmt.Sprintf(format, args...)} }
func fail(format string, args ...any) Verdict { return Verdict{Fail, fmt.Sprintf(format, args...)} }
func notApplicable(format string, args ...any) Verdict {
	return Verdict{NotApplicable, fmt.Sprintf(format, args...)}
}

// Control is one row of the benchmark.
type Control struct {
	ID    string // the benchmark's number, such as 1.2.6
	Title string
	Judge func(*Facts) Verdict
	Mend  string // the command or setting that fixes a failure; "" when the control cannot fail
}

// Row is a judged control.
type Row struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	Verdict
	Mend string `json:"mend,omitempty"` // set when the control failed
}

// Judge applies all controls to f, in the benchmark's order.
func Judge(f *Facts) []Row {
	var rows []Row
	for _, c := range controls() {
		row := Row{ID: c.ID, Title: c.Title, Verdict: c.Judge(f)}
		if row.Result == Fail {
			row.Mend = c.Mend
		}
		rows = append(rows, row)
	}
	return rows
}

func controls() []Control {
	return slices.Concat(serverFiles(), apiServer(), controllers(), store(), credentials(), nodeFiles(), kubelet(), policies())
}

// never returns a control that does not apply to any cluster of Balsa, with the reason.
func never(id, title, why string) Control {
	return Control{ID: id, Title: title, Judge: func(*Facts) Verdict { return notApplicable("%s", why) }}
}

// all passes when bad returns "" for every item. A failure names at most three items. none is the verdict without items.
func all[T any](items []T, none Verdict, good string, bad func(T) string) Verdict {
	if len(items) == 0 {
		return none
	}
	var faults []string
	for _, item := range items {
		if why := bad(item); why != "" {
			faults = append(faults, why)
		}
	}
	if len(faults) == 0 {
		return pass("%s", good)
	}
	more := ""
	if len(faults) > 3 {
		more = fmt.Sprintf(" and %d more", len(faults)-3)
		faults = faults[:3]
	}
	return fail("%s%s", strings.Join(faults, "; "), more)
}
