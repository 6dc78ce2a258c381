package corpus

import (
	"regexp"
	"slices"
)

// Allowed is a difference that is meant, or not ours to decide.
type Allowed struct {
	// Line matches the whole line of a difference.
	Line string
	// Reason is why it is so.
	Reason string
	// Sometimes: it need not be found.
	Sometimes bool
}

// FilterAllowed returns the differences that are not allowed, and the permissions that nothing needed.
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
