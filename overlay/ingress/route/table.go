package route

import (
	"cmp"
	"slices"
	"strings"
)

// Table finds the rule for a request.
type Table[T any] struct {
	hosts HostMap[*paths[T]]
	size  int
}

// paths are the rules of one host pattern.
type paths[T any] struct {
	exact  map[string][]*Rule[T]
	regex  []*Rule[T]
	prefix map[string][]*Rule[T] // without final slash; "" is the root
	depth  int                   // elements of the longest prefix
}

// New builds a table. It takes ownership of the rules.
func New[T any](w Wildcard, rules []Rule[T]) *Table[T] {
	t := &Table[T]{size: len(rules)}
	t.hosts.Wildcard = w
	var all []*paths[T]
	for i := range rules {
		r := &rules[i]
		p, ok := t.hosts.Get(r.Host)
		if !ok {
			p = &paths[T]{exact: map[string][]*Rule[T]{}, prefix: map[string][]*Rule[T]{}}
			t.hosts.Set(r.Host, p)
			all = append(all, p)
		}
		p.add(r)
	}
	for _, p := range all {
		p.sort()
	}
	return t
}

func (p *paths[T]) add(r *Rule[T]) {
	switch r.Path.Kind {
	case Exact:
		p.exact[r.Path.Value] = append(p.exact[r.Path.Value], r)
	case Regex:
		p.regex = append(p.regex, r)
	default:
		key := strings.TrimRight(r.Path.Value, "/")
		p.prefix[key] = append(p.prefix[key], r)
		p.depth = max(p.depth, strings.Count(key, "/"))
	}
}

func (p *paths[T]) sort() {
	for _, list := range p.exact {
		slices.SortFunc(list, (*Rule[T]).compare)
	}
	for _, list := range p.prefix {
		slices.SortFunc(list, (*Rule[T]).compare)
	}
	slices.SortFunc(p.regex, func(a, b *Rule[T]) int {
		return cmp.Or(cmp.Compare(len(b.Path.Value), len(a.Path.Value)), a.compare(b))
	})
}

// Len returns the number of rules, 0 for a nil table.
func (t *Table[T]) Len() int {
	if t == nil {
		return 0
	}
	return t.size
}

// Find returns the rule for the request and how specific its host is; nil if there is none. A nil table has no rules.
func (t *Table[T]) Find(req *Request) (found *Rule[T], specific int) {
	if t == nil {
		return nil, 0
	}
	t.hosts.Find(req.Host, func(p *paths[T], s int) bool {
		found, specific = p.find(req), s
		return found != nil
	})
	if found == nil {
		specific = 0
	}
	return found, specific
}

func (p *paths[T]) find(req *Request) *Rule[T] {
	if r := first(p.exact[req.Path], req); r != nil {
		return r
	}
	for _, r := range p.regex {
		if r.Path.re.MatchString(req.Path) && r.matches(req) {
			return r
		}
	}
	if len(p.prefix) == 0 {
		return nil
	}
	var room [16]int
	ends := room[:0] // the end offset of each of the first path elements
	for i := 1; i <= len(req.Path) && len(ends) < p.depth; i++ {
		if i == len(req.Path) || req.Path[i] == '/' {
			ends = append(ends, i)
		}
	}
	for _, end := range slices.Backward(ends) {
		if r := first(p.prefix[req.Path[:end]], req); r != nil {
			return r
		}
	}
	return first(p.prefix[""], req)
}

func first[T any](list []*Rule[T], req *Request) *Rule[T] {
	for _, r := range list {
		if r.matches(req) {
			return r
		}
	}
	return nil
}

// HasDotElement reports whether an element of the path is "." or "..": the proxy and the backend might understand such a path
// differently.
func HasDotElement(path string) bool {
	for {
		i := strings.Index(path, "/.")
		if i < 0 {
			return false
		}
		path = path[i+2:]
		path = strings.TrimPrefix(path, ".")
		if path == "" || path[0] == '/' {
			return true
		}
	}
}
