package corpus

import (
	"regexp"
	"slices"
)

// Allowed is a difference that is intended, or that does not depend on this server.
type Allowed struct {
	// Line matches the whole line of a difference.
	Line string
	// Reason says why the difference is right.
	Reason string
	// Sometimes means that the difference need not occur in each run.
	Sometimes bool
}

// FilterAllowed returns the differences that are not allowed, and the allowed ones that did not occur.
func FilterAllowed(found []Difference, allowed []Allowed) (left []Difference, idle []Allowed) {
	used := make([]bool, len(allowed))
	rules := make([]*regexp.Regexp, len(allowed))
	for i, a := range allowed {
		rules[i] = regexp.MustCompile("^(?:" + a.Line + ")$")
	}
	for _, d := range found {
		i := slices.IndexFunc(rules, func(r *regexp.Regexp) bool { return r.MatchString(d.String()) })
		if i < 0 {
			left = append(left, d)
			continue
		}
		used[i] = true
	}
	for i, a := range allowed {
		if !used[i] && !a.Sometimes {
			idle = append(idle, a)
		}
	}
	return left, idle
}
