package route

import (
	"cmp"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// PathKind says how a rule's path is compared, in the order of precedence.
type PathKind int

// The kinds of paths.
const (
	Exact  PathKind = iota
	Regex           // the whole path, by Go's regular expressions, whose time is linear
	Prefix          // by path elements: /a/b matches /a/b and /a/b/c, but not /a/bc; a final slash is ignored
)

// Path is a rule's condition on the path. The zero value is invalid; AnyPath matches all.
type Path struct {
	Kind  PathKind
	Value string
	re    *regexp.Regexp
}

// AnyPath is the prefix of every path.
var AnyPath = Path{Kind: Prefix, Value: "/"}

// RegexPath compiles a pattern for whole paths.
func RegexPath(pattern string) (Path, error) {
	re, err := whole(pattern)
	return Path{Kind: Regex, Value: pattern, re: re}, err
}

func whole(pattern string) (*regexp.Regexp, error) { return regexp.Compile("^(?:" + pattern + ")$") }

// Value is a rule's condition on a header or a query parameter.
type Value struct {
	Name, Value string
	re          *regexp.Regexp
}

// HeaderValue returns a condition on a header. With regex, value is a regular expression for the whole header value.
func HeaderValue(name, value string, regex bool) (Value, error) {
	return newValue(http.CanonicalHeaderKey(name), value, regex)
}

// QueryValue returns a condition on the first value of a query parameter.
func QueryValue(name, value string, regex bool) (Value, error) { return newValue(name, value, regex) }

func newValue(name, value string, regex bool) (v Value, err error) {
	v = Value{Name: name, Value: value}
	if regex {
		v.re, err = whole(value)
	}
	return v, err
}

func (v *Value) is(got string) bool {
	if v.re != nil {
		return v.re.MatchString(got)
	}
	return got == v.Value
}

// Rank orders rules that are equally specific.
type Rank struct {
	Last            bool // for a default backend: it comes after all other rules
	Created         time.Time
	Namespace, Name string
	Index           int // of the rule in its object
}

func (r Rank) compare(o Rank) int {
	if r.Last != o.Last {
		if r.Last {
			return 1
		}
		return -1
	}
	return cmp.Or(r.Created.Compare(o.Created), cmp.Compare(r.Namespace, o.Namespace), cmp.Compare(r.Name, o.Name), cmp.Compare(r.Index, o.Index))
}

// Rule maps requests to a target.
type Rule[T any] struct {
	Host    string // a name, *.name, or "" for any
	Path    Path
	Method  string // "" is any
	Headers []Value
	Query   []Value
	Rank    Rank
	Target  T
}

// compare orders the rules of one host and one path.
func (r *Rule[T]) compare(o *Rule[T]) int {
	named := func(method string) int { return min(len(method), 1) }
	return cmp.Or(
		cmp.Compare(named(o.Method), named(r.Method)), cmp.Compare(len(o.Headers), len(r.Headers)),
		cmp.Compare(len(o.Query), len(r.Query)), r.Rank.compare(o.Rank),
	)
}

// Request is the part of an HTTP request that rules match on.
type Request struct {
	Host   string // as NormalizeHost returns it
	Path   string // decoded, starting with a slash
	Method string
	Header http.Header
	Query  string // raw; parsed only if a rule has a condition on it

	parsed url.Values
}

func (r *Request) query() url.Values {
	if r.parsed == nil {
		r.parsed, _ = url.ParseQuery(r.Query) // parameters that cannot be parsed are ignored
		if r.parsed == nil {
			r.parsed = url.Values{}
		}
	}
	return r.parsed
}

// matches reports whether a rule whose host and path match also matches the request's method, headers and query.
func (r *Rule[T]) matches(req *Request) bool {
	if r.Method != "" && r.Method != req.Method {
		return false
	}
	for i := range r.Headers {
		values := req.Header[r.Headers[i].Name]
		if len(values) == 0 || !r.Headers[i].is(strings.Join(values, ",")) {
			return false
		}
	}
	for i := range r.Query {
		values := req.query()[r.Query[i].Name]
		if len(values) == 0 || !r.Query[i].is(values[0]) {
			return false
		}
	}
	return true
}
