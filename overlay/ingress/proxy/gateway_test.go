package proxy_test

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gw "sigs.k8s.io/gateway-api/apis/v1"
)

func ptr[T any](v T) *T { return &v }

// gateway adds a Gateway with one HTTP listener on port 80.
func (w *world) gateway(name string, change func(*gw.Gateway)) {
	g := &gw.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: gw.GatewaySpec{
		GatewayClassName: "balsa", Listeners: []gw.Listener{{Name: "http", Port: 80, Protocol: gw.HTTPProtocolType}},
	}}
	if change != nil {
		change(g)
	}
	w.o.Gateways = append(w.o.Gateways, g)
}

// route adds an HTTPRoute of the Gateway gate.
func (w *world) route(name string, hosts []gw.Hostname, rules ...gw.HTTPRouteRule) {
	w.o.HTTPRoutes = append(w.o.HTTPRoutes, &gw.HTTPRoute{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       gw.HTTPRouteSpec{CommonRouteSpec: gw.CommonRouteSpec{ParentRefs: []gw.ParentReference{{Name: "gate"}}}, Hostnames: hosts, Rules: rules},
	})
}

func to(service string, weight int32) gw.HTTPBackendRef {
	return gw.HTTPBackendRef{BackendRef: gw.BackendRef{
		BackendObjectReference: gw.BackendObjectReference{Name: gw.ObjectName(service), Port: ptr(gw.PortNumber(80))}, Weight: &weight,
	}}
}

func path(kind gw.PathMatchType, value string) *gw.HTTPPathMatch {
	return &gw.HTTPPathMatch{Type: &kind, Value: &value}
}

func TestRoutesMatchHeadersQueriesAndMethods(t *testing.T) {
	w := newWorld(t, nil)
	w.gateway("gate", nil)
	var rules []gw.HTTPRouteRule
	add := func(name string, m gw.HTTPRouteMatch) {
		w.service(name, "", backend(t, says(name)))
		rules = append(rules, gw.HTTPRouteRule{Matches: []gw.HTTPRouteMatch{m}, BackendRefs: []gw.HTTPBackendRef{to(name, 1)}})
	}
	add("all", gw.HTTPRouteMatch{})
	add("canary", gw.HTTPRouteMatch{Headers: []gw.HTTPHeaderMatch{{Name: "x-canary", Value: "yes"}}})
	add("version", gw.HTTPRouteMatch{Headers: []gw.HTTPHeaderMatch{{Name: "x-version", Value: "v[2-4]", Type: ptr(gw.HeaderMatchRegularExpression)}}})
	add("query", gw.HTTPRouteMatch{QueryParams: []gw.HTTPQueryParamMatch{{Name: "animal", Value: "whale"}}})
	add("post", gw.HTTPRouteMatch{Method: ptr(gw.HTTPMethodPost)})
	add("exact", gw.HTTPRouteMatch{Path: path(gw.PathMatchExact, "/exact")})
	add("regex", gw.HTTPRouteMatch{Path: path(gw.PathMatchRegularExpression, "/v[0-9]+/.*")})
	w.route("one", nil, rules...)
	w.apply()
	for _, c := range []struct {
		url, header, method, want string
	}{
		{"/", "", "GET", "all"}, {"/", "x-canary: yes", "GET", "canary"}, {"/", "x-canary: no", "GET", "all"},
		{"/", "x-version: v3", "GET", "version"}, {"/", "x-version: v33", "GET", "all"}, {"/?animal=whale", "", "GET", "query"},
		{"/?animal=dolphin&animal=whale", "", "GET", "all"}, {"/", "x-canary: yes", "POST", "post"},
		{"/exact", "x-canary: yes", "GET", "exact"}, {"/exact/", "", "GET", "all"}, {"/v12/x", "", "GET", "regex"},
	} {
		_, body := w.get("http://a.example.com"+c.url, func(r *http.Request) {
			r.Method = c.method
			if name, value, ok := strings.Cut(c.header, ": "); ok {
				r.Header.Set(name, value)
			}
		})
		if body != c.want {
			t.Errorf("%s %s with %q: %q, want %q", c.method, c.url, c.header, body, c.want)
		}
	}
}

func TestWeightsSplitTraffic(t *testing.T) {
	w := newWorld(t, nil)
	w.gateway("gate", nil)
	for _, n := range []string{"old", "new", "never"} {
		w.service(n, "", backend(t, says(n)))
	}
	w.route("one", nil, gw.HTTPRouteRule{BackendRefs: []gw.HTTPBackendRef{to("old", 70), to("new", 20), to("never", 0), to("missing", 10)}})
	w.apply()
	counts := map[string]float64{}
	client := w.client(nil, false)
	const total = 3000
	for range total {
		resp, err := client.Get("http://a.example.com/")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode == 500 {
			body = []byte("broken")
		}
		counts[string(body)]++
	}
	for name, want := range map[string]float64{"old": 0.7, "new": 0.2, "broken": 0.1, "never": 0} {
		// Five standard deviations of a binomial distribution: one run in a million fails by chance.
		if got := counts[name] / total; math.Abs(got-want) > 5*math.Sqrt(want*(1-want)/total) {
			t.Errorf("%s got %.3f of the requests, want %.2f", name, got, want)
		}
	}
}

func TestFiltersChangeRequestsAndAnswers(t *testing.T) {
	w := newWorld(t, nil)
	w.gateway("gate", nil)
	w.service("a", "", backend(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Secret", "1")
		w.Header().Set("X-Kept", "1")
		fmt.Fprintf(w, "%s%s set=%s add=%s remove=%s", r.Host, r.RequestURI, r.Header["X-Set"], r.Header["X-Add"], r.Header["X-Remove"])
	})))
	headers := []gw.HTTPRouteFilter{
		{Type: gw.HTTPRouteFilterRequestHeaderModifier, RequestHeaderModifier: &gw.HTTPHeaderFilter{
			Set: []gw.HTTPHeader{{Name: "x-set", Value: "new"}}, Add: []gw.HTTPHeader{{Name: "x-add", Value: "more"}}, Remove: []string{"x-remove"},
		}},
		{Type: gw.HTTPRouteFilterResponseHeaderModifier, ResponseHeaderModifier: &gw.HTTPHeaderFilter{
			Set: []gw.HTTPHeader{{Name: "x-kept", Value: "2"}}, Remove: []string{"x-secret"},
		}},
	}
	rewrite := func(p *gw.HTTPPathModifier, host *gw.PreciseHostname) []gw.HTTPRouteFilter {
		return []gw.HTTPRouteFilter{{Type: gw.HTTPRouteFilterURLRewrite, URLRewrite: &gw.HTTPURLRewriteFilter{Path: p, Hostname: host}}}
	}
	rule := func(prefix string, filters []gw.HTTPRouteFilter) gw.HTTPRouteRule {
		return gw.HTTPRouteRule{Matches: []gw.HTTPRouteMatch{{Path: path(gw.PathMatchPathPrefix, prefix)}}, Filters: filters, BackendRefs: []gw.HTTPBackendRef{to("a", 1)}}
	}
	prefix := func(s string) *gw.HTTPPathModifier {
		return &gw.HTTPPathModifier{Type: gw.PrefixMatchHTTPPathModifier, ReplacePrefixMatch: &s}
	}
	w.route("one", nil,
		rule("/headers", headers), rule("/full", rewrite(&gw.HTTPPathModifier{Type: gw.FullPathHTTPPathModifier, ReplaceFullPath: ptr("/all")}, ptr(gw.PreciseHostname("b.example.com")))),
		rule("/one", rewrite(prefix("/two"), nil)), rule("/gone", rewrite(prefix(""), nil)), rule("/slash", rewrite(prefix("/x/"), nil)),
		rule("/unsupported", []gw.HTTPRouteFilter{{Type: gw.HTTPRouteFilterExtensionRef}}),
	)
	w.apply()
	const host = "a.example.com"
	for url, want := range map[string]string{
		"/full/x?q": "b.example.com/all?q", "/one": host + "/two", "/one/": host + "/two/", "/one/x": host + "/two/x", "/gone": host + "/",
		"/gone/": host + "/", "/gone/x": host + "/x", "/slash": host + "/x/", "/slash/y": host + "/x/y", "/one/a%2Fb": host + "/two/a%2Fb",
	} {
		if _, body := w.get("http://"+host+url, nil); body != want+" set=[] add=[] remove=[]" {
			t.Errorf("%s: %q, want %q", url, body, want)
		}
	}
	resp, body := w.get("http://a.example.com/headers", func(r *http.Request) {
		r.Header = http.Header{"X-Set": {"old"}, "X-Add": {"first"}, "X-Remove": {"1"}}
	})
	if want := host + "/headers set=[new] add=[first more] remove=[]"; body != want {
		t.Errorf("%q, want %q", body, want)
	}
	if resp.Header.Get("X-Secret") != "" || resp.Header.Get("X-Kept") != "2" {
		t.Errorf("answer's header %v", resp.Header)
	}
	if resp, _ := w.get("http://a.example.com/unsupported", nil); resp.StatusCode != 500 {
		t.Errorf("a filter that cannot be applied was passed over: %d", resp.StatusCode)
	}
}

func TestRedirectsLeadElsewhere(t *testing.T) {
	w := newWorld(t, nil)
	w.gateway("gate", func(g *gw.Gateway) {
		g.Spec.Listeners = append(g.Spec.Listeners, gw.Listener{Name: "other", Port: 8080, Protocol: gw.HTTPProtocolType})
	})
	var rules []gw.HTTPRouteRule
	for i, f := range []gw.HTTPRequestRedirectFilter{
		{Scheme: ptr("https"), StatusCode: ptr(301)},
		{Hostname: ptr(gw.PreciseHostname("b.example.com"))},
		{Port: ptr(gw.PortNumber(8443)), Scheme: ptr("https"), StatusCode: ptr(308)},
		{Path: &gw.HTTPPathModifier{Type: gw.PrefixMatchHTTPPathModifier, ReplacePrefixMatch: ptr("/new")}},
	} {
		rules = append(rules, gw.HTTPRouteRule{
			Matches: []gw.HTTPRouteMatch{{Path: path(gw.PathMatchPathPrefix, fmt.Sprintf("/r%d", i))}},
			Filters: []gw.HTTPRouteFilter{{Type: gw.HTTPRouteFilterRequestRedirect, RequestRedirect: &f}},
		})
	}
	w.route("one", nil, rules...)
	w.apply()
	for url, want := range map[string]string{
		"/r0/x?q=1": "301 https://a.example.com/r0/x?q=1", "/r1": "302 http://b.example.com/r1",
		"/r2": "308 https://a.example.com:8443/r2", "/r3/x": "302 http://a.example.com/new/x",
	} {
		resp, _ := w.get("http://a.example.com"+url, nil)
		if got := fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Location")); got != want {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
	}
	reader, _ := raw(t, w.addr(8080), "GET /r1 HTTP/1.0\r\nHost: a.example.com\r\n\r\n")
	if all, _ := io.ReadAll(reader); !strings.Contains(string(all), "Location: http://b.example.com:8080/r1\r\n") {
		t.Errorf("%s", all)
	}
}

func TestMirrorsGetACopy(t *testing.T) {
	w := newWorld(t, nil)
	w.gateway("gate", nil)
	copies := make(chan string, 10)
	w.service("a", "", backend(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })))
	w.service("copy", "", backend(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		copies <- fmt.Sprint(r.Method, " ", r.Host, " ", r.URL, " ", string(body), " ", err)
	})))
	w.route("one", nil, gw.HTTPRouteRule{BackendRefs: []gw.HTTPBackendRef{to("a", 1)}, Filters: []gw.HTTPRouteFilter{{
		Type: gw.HTTPRouteFilterRequestMirror, RequestMirror: &gw.HTTPRequestMirrorFilter{BackendRef: to("copy", 1).BackendObjectReference},
	}}})
	w.apply()
	if _, body := w.get("http://a.example.com/x?y", nil); body != "" {
		t.Errorf("%q", body)
	}
	if got := <-copies; got != "GET a.example.com /x?y  <nil>" {
		t.Errorf("copy: %s", got)
	}
	resp, err := w.client(nil, false).Post("http://a.example.com/", "text/plain", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if got := <-copies; string(body) != "body" || got != "POST a.example.com / body <nil>" {
		t.Errorf("answer %q, copy %s", body, got)
	}
}

// A Gateway's route and an Ingress' rule share a port; the more specific host wins.
func TestGatewaysAndIngressesShareThePort(t *testing.T) {
	w := newWorld(t, nil)
	for _, n := range []string{"in", "gw"} {
		w.service(n, "", backend(t, says(n)))
	}
	w.gateway("gate", nil)
	w.route("one", []gw.Hostname{"both.example.com", "*.wild.example.com"}, gw.HTTPRouteRule{BackendRefs: []gw.HTTPBackendRef{to("gw", 1)}})
	for i, host := range []string{"both.example.com", "x.wild.example.com", ""} {
		w.ingress(fmt.Sprint(i), host, "/", "in", nil)
	}
	w.apply()
	for host, want := range map[string]string{"both.example.com": "gw", "x.wild.example.com": "in", "y.z.wild.example.com": "gw", "other.org": "in"} {
		if _, body := w.get("http://"+host+"/", nil); body != want {
			t.Errorf("%s: %q, want %q", host, body, want)
		}
	}
}

func TestGatewayTimeouts(t *testing.T) {
	w := newWorld(t, nil)
	w.gateway("gate", nil)
	w.service("slow", "", backend(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })))
	w.route("one", nil, gw.HTTPRouteRule{BackendRefs: []gw.HTTPBackendRef{to("slow", 1)}, Timeouts: &gw.HTTPRouteTimeouts{Request: ptr(gw.Duration("50ms"))}})
	w.apply()
	if resp, _ := w.get("http://a.example.com/", nil); resp.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("status %d", resp.StatusCode)
	}
}

func TestHTTPSListenersShowTheirCertificates(t *testing.T) {
	w, ca := newWorld(t, nil), newAuthority(t)
	w.service("a", "", backend(t, says("a")))
	w.certs["default/cert"] = ca.sign(1, "a.example.com")
	w.gateway("gate", func(g *gw.Gateway) {
		g.Spec.Listeners = []gw.Listener{{Name: "https", Port: 443, Protocol: gw.HTTPSProtocolType, Hostname: ptr(gw.Hostname("a.example.com")),
			TLS: &gw.ListenerTLSConfig{CertificateRefs: []gw.SecretObjectReference{{Name: "cert"}}}}}
	})
	w.route("one", nil, gw.HTTPRouteRule{BackendRefs: []gw.HTTPBackendRef{to("a", 1)}})
	p := w.apply()
	resp, err := w.client(ca.pool, true).Get("https://a.example.com/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 || len(p.Problems) > 0 {
		t.Errorf("%d, %v", resp.StatusCode, p.Problems)
	}
	if len(p.Ports) != 1 || p.Ports[443] == nil {
		t.Errorf("ports %v", p.Ports)
	}
}
