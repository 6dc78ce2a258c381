package route_test

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/balsahq/balsa/overlay/ingress/route"
)

type rule = route.Rule[int]

// oracle says what the documents say, rule by rule: it compares everything with everything.
func oracle(w route.Wildcard, rules []rule, req *route.Request) int {
	var best *rule
	for i := range rules {
		r := &rules[i]
		if hostFits(w, r.Host, req.Host) && pathFits(r.Path, req.Path) && restFits(r, req) && (best == nil || better(r, best)) {
			best = r
		}
	}
	if best == nil {
		return -1
	}
	return best.Target
}

func hostFits(w route.Wildcard, pattern, host string) bool {
	suffix, wild := strings.CutPrefix(pattern, "*")
	switch {
	case pattern == "":
		return true
	case !wild:
		return pattern == host
	}
	label, ok := strings.CutSuffix(host, suffix)
	return ok && label != "" && (w == route.ManyLabels || !strings.Contains(label, "."))
}

func elements(path string) []string {
	path = strings.TrimRight(path, "/")
	if path == "" {
		return nil
	}
	return strings.Split(path, "/")[1:]
}

func pathFits(p route.Path, path string) bool {
	switch p.Kind {
	case route.Exact:
		return p.Value == path
	case route.Regex:
		return regexp.MustCompile("^(" + p.Value + ")$").MatchString(path)
	}
	want, got := elements(p.Value), strings.Split(path, "/")[1:]
	return len(want) <= len(got) && slices.Equal(want, got[:len(want)])
}

func restFits(r *rule, req *route.Request) bool {
	for _, h := range r.Headers {
		if len(req.Header.Values(h.Name)) == 0 || req.Header.Get(h.Name) != h.Value {
			return false
		}
	}
	query, _ := url.ParseQuery(req.Query)
	for _, q := range r.Query {
		if !query.Has(q.Name) || query.Get(q.Name) != q.Value {
			return false
		}
	}
	return r.Method == "" || r.Method == req.Method
}

func better(a, b *rule) bool {
	host := func(r *rule) int {
		switch {
		case r.Host == "":
			return 0
		case strings.HasPrefix(r.Host, "*"):
			return len(r.Host)
		}
		return 1000
	}
	length := func(r *rule) int {
		if r.Path.Kind == route.Prefix {
			return len(strings.TrimRight(r.Path.Value, "/"))
		}
		return len(r.Path.Value)
	}
	for _, pair := range [][2]int{
		{host(a), host(b)}, {int(b.Path.Kind), int(a.Path.Kind)}, {length(a), length(b)}, {min(1, len(a.Method)), min(1, len(b.Method))},
		{len(a.Headers), len(b.Headers)}, {len(a.Query), len(b.Query)}, {b.Rank.Created.Second(), a.Rank.Created.Second()},
	} {
		if pair[0] != pair[1] {
			return pair[0] > pair[1]
		}
	}
	return a.Rank.Index < b.Rank.Index
}

var (
	hosts   = []string{"", "a.example.com", "b.example.com", "*.example.com", "*.a.example.com", "*.com", "other.org"}
	asked   = []string{"", "a.example.com", "b.example.com", "x.a.example.com", "example.com", "y.x.a.example.com", "other.org", "com", ".example.com"}
	element = []string{"a", "b", "ab", "", "a.b"}
	regexes = []string{"/a.*", "/[ab]+", "/(a|b)/.*", "/"}
)

func drawPath(t *rapid.T, name string) string {
	return "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom(element), 0, 4).Draw(t, name), "/")
}

func drawRule(t *rapid.T, i int) rule {
	r := rule{Host: rapid.SampledFrom(hosts).Draw(t, "host"), Target: i, Rank: route.Rank{
		Created: time.Unix(int64(rapid.IntRange(0, 2).Draw(t, "created")), 0), Index: i,
	}}
	switch kind := route.PathKind(rapid.IntRange(0, 2).Draw(t, "kind")); kind {
	case route.Regex:
		r.Path, _ = route.RegexPath(rapid.SampledFrom(regexes).Draw(t, "regex"))
	default:
		r.Path = route.Path{Kind: kind, Value: drawPath(t, "path")}
	}
	r.Method = rapid.SampledFrom([]string{"", "", "GET", "POST"}).Draw(t, "method")
	for n := range rapid.IntRange(0, 2).Draw(t, "headers") {
		v, _ := route.HeaderValue(fmt.Sprintf("x-%d", n), rapid.SampledFrom([]string{"1", "2"}).Draw(t, "value"), false)
		r.Headers = append(r.Headers, v)
	}
	for n := range rapid.IntRange(0, 1).Draw(t, "parameters") {
		v, _ := route.QueryValue(fmt.Sprintf("q%d", n), rapid.SampledFrom([]string{"1", "2"}).Draw(t, "value"), false)
		r.Query = append(r.Query, v)
	}
	return r
}

func TestTheTableChoosesAsTheDocumentsSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := route.Wildcard(rapid.Bool().Draw(t, "many"))
		rules := make([]rule, rapid.IntRange(1, 30).Draw(t, "rules"))
		for i := range rules {
			rules[i] = drawRule(t, i)
		}
		table := route.New(w, slices.Clone(rules))
		for range 20 {
			req := &route.Request{
				Host: rapid.SampledFrom(asked).Draw(t, "asked"), Path: drawPath(t, "at"),
				Method: rapid.SampledFrom([]string{"GET", "POST", "PUT"}).Draw(t, "by"),
				Header: http.Header{"X-0": {rapid.SampledFrom([]string{"1", "2"}).Draw(t, "x-0")}, "X-1": {"1"}},
				Query:  rapid.SampledFrom([]string{"", "q0=1", "q0=2&q0=1", "q1=1;%zz&q0=1"}).Draw(t, "query"),
			}
			got := -1
			if r, _ := table.Find(req); r != nil {
				got = r.Target
			}
			if want := oracle(w, rules, req); got != want {
				t.Fatalf("%+v goes to %d, want %d of %+v", req, got, want, rules)
			}
		}
	})
}

// The tables in the documents of Ingress.
func TestPathTypesOfIngress(t *testing.T) {
	for _, c := range []struct {
		kind        route.PathKind
		path, asked string
		want        bool
	}{
		{route.Prefix, "/", "/anything/at/all", true},
		{route.Exact, "/foo", "/foo", true},
		{route.Exact, "/foo", "/bar", false},
		{route.Exact, "/foo", "/foo/", false},
		{route.Exact, "/foo/", "/foo", false},
		{route.Prefix, "/foo", "/foo", true},
		{route.Prefix, "/foo", "/foo/", true},
		{route.Prefix, "/foo/", "/foo", true},
		{route.Prefix, "/foo/", "/foo/", true},
		{route.Prefix, "/aaa/bb", "/aaa/bbb", false},
		{route.Prefix, "/aaa/bbb", "/aaa/bbb", true},
		{route.Prefix, "/aaa/bbb/", "/aaa/bbb", true},
		{route.Prefix, "/aaa/bbb", "/aaa/bbb/", true},
		{route.Prefix, "/aaa/bbb", "/aaa/bbb/ccc", true},
		{route.Prefix, "/aaa/bbb", "/aaa/bbbxyz", false},
		{route.Exact, "/Foo", "/foo", false},
		{route.Prefix, "/Foo", "/foo", false},
	} {
		table := route.New(route.OneLabel, []rule{{Path: route.Path{Kind: c.kind, Value: c.path}}})
		if r, _ := table.Find(&route.Request{Path: c.asked}); (r != nil) != c.want {
			t.Errorf("kind %d %s: %s is %v", c.kind, c.path, c.asked, r != nil)
		}
	}
}

func TestHostsAreNormalized(t *testing.T) {
	for in, want := range map[string]string{
		"A.Example.com": "a.example.com", "a.example.com:8080": "a.example.com", "a.example.com.": "a.example.com",
		"[::1]:80": "::1", "[::1]": "::1", "": "", "10.0.0.1:80": "10.0.0.1", "a.example.com.:443": "a.example.com",
	} {
		if got := route.NormalizeHost(in); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

func TestHostsIntersect(t *testing.T) {
	for _, c := range [][3]string{
		{"", "a.b", "a.b"}, {"a.b", "", "a.b"}, {"*.b", "a.b", "a.b"}, {"x.a.b", "*.b", "x.a.b"}, {"*.b", "*.a.b", "*.a.b"},
		{"*.b", "b", "none"}, {"a.b", "c.b", "none"}, {"*.b", "*.c", "none"}, {"A.b", "a.B", "a.b"}, {"", "", ""},
	} {
		got, ok := route.Intersect(c[0], c[1])
		if !ok {
			got = "none"
		}
		if got != c[2] {
			t.Errorf("%q and %q have %q in common, want %q", c[0], c[1], got, c[2])
		}
	}
}

func TestDotElementsAreSeen(t *testing.T) {
	for path, want := range map[string]bool{
		"/": false, "/a/../b": true, "/a/..": true, "/.": true, "/./a": true, "/.well-known/x": false, "/a..b": false, "/..a": false,
		"/a/.../b": false, "/a/.b/..": true,
	} {
		if got := route.HasDotElement(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

func FuzzFind(f *testing.F) {
	rules := []rule{
		{Host: "a.example.com", Path: route.Path{Kind: route.Exact, Value: "/x"}, Target: 0},
		{Host: "*.example.com", Path: route.Path{Kind: route.Prefix, Value: "/x/y"}, Target: 1},
		{Host: "", Path: route.Path{Kind: route.Prefix, Value: "/x/y/z/"}, Target: 2},
		{Host: "*.a.example.com", Path: route.AnyPath, Target: 3},
	}
	tables := map[route.Wildcard]*route.Table[int]{}
	for _, w := range []route.Wildcard{route.OneLabel, route.ManyLabels} {
		tables[w] = route.New(w, slices.Clone(rules))
	}
	for _, s := range [][2]string{{"a.example.com", "/x"}, {"[::1]:80", "//x/../y"}, {".", "/" + strings.Repeat("/x", 99)}, {"..example.com", "/x/y"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, host, path string) {
		host = route.NormalizeHost(host)
		if !strings.HasPrefix(path, "/") {
			path = "/" + path
		}
		for w, table := range tables {
			req, got := &route.Request{Host: host, Path: path}, -1
			if r, _ := table.Find(req); r != nil {
				got = r.Target
			}
			if want := oracle(w, rules, req); got != want {
				t.Fatalf("%q %q goes to %d, want %d", host, path, got, want)
			}
		}
	})
}

func BenchmarkFind(b *testing.B) {
	for _, n := range []int{10, 1000, 100000} {
		rules := make([]rule, n)
		for i := range rules {
			rules[i] = rule{Host: fmt.Sprintf("h%d.example.com", i/4), Path: route.Path{Kind: route.Prefix, Value: fmt.Sprintf("/api/v%d", i%4)}}
		}
		table := route.New(route.OneLabel, rules)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if r, _ := table.Find(&route.Request{Host: "h1.example.com", Path: "/api/v2/pods/x"}); r == nil {
					b.Fatal("nothing")
				}
			}
		})
	}
}
