package proxy

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"

	"github.com/balsahq/balsa/overlay/ingress/plan"
	"github.com/balsahq/balsa/overlay/ingress/route"
)

// exchange is one request with its rule's target and its backend.
type exchange struct {
	rule    *route.Rule[*plan.Target]
	target  *plan.Target
	share   *plan.Weighted
	backend plan.Backend
	port    int // the port at which the client connected
}

type exchangeKey struct{}

// ServeHTTP implements http.Handler.
func (e *entry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := e.proxy
	if r.ProtoMajor == 1 {
		s := newStall(w, r, p.cfg.StallTimeout)
		defer s.finish()
		w = s
	}
	defer p.requests.Add(-1)
	if p.requests.Add(1) > 4*int64(p.cfg.MaxConnections) {
		respond(w, http.StatusServiceUnavailable, "too many requests are under way")
		return
	}
	path := r.URL.Path
	switch {
	case r.Method == http.MethodConnect || !strings.HasPrefix(path, "/"):
		if path != "" || r.Method == http.MethodConnect {
			respond(w, http.StatusBadRequest, "this server is not a forward proxy")
			return
		}
		path = "/"
	case route.HasDotElement(path):
		respond(w, http.StatusBadRequest, "a path must not have . and .. as elements")
		return
	}
	rule, listener := e.find(r, path)
	if rule == nil {
		respond(w, http.StatusNotFound, "no rule matches this host and path")
		return
	}
	t := rule.Target
	switch {
	case t.ForceHTTPS && r.TLS == nil:
		redirect(w, r, rule, &plan.Redirect{Scheme: "https", Port: int32(p.cfg.HTTPSPort), Status: http.StatusPermanentRedirect}, 0)
	case t.Broken != "":
		respond(w, http.StatusInternalServerError, "the rule for this request cannot be served")
	case t.Redirect != nil:
		modifyHeader(w.Header(), &t.Response)
		redirect(w, r, rule, t.Redirect, listener)
	default:
		e.forward(w, r, rule)
	}
}

// find returns the rule for a request: of a Gateway or an Ingress, whichever has the more specific host. listener is the
// port in the Gateway's spec.
func (e *entry) find(r *http.Request, path string) (found *route.Rule[*plan.Target], listener int32) {
	now := e.plan.Load()
	req := &route.Request{Host: route.NormalizeHost(r.Host), Path: path, Method: r.Method, Header: r.Header, Query: r.URL.RawQuery}
	found, specific := now.Ingress.Find(req)
	if now.Listeners.Len() == 0 {
		return found, 0
	}
	now.Listeners.Find(req.Host, func(l *plan.Listener, _ int) bool {
		if rule, s := l.Rules.Find(req); rule != nil && (found == nil || s >= specific) {
			found, listener = rule, l.Port
		}
		return true // only the listener with the most specific hostname counts
	})
	return found, listener
}

// forward hands the request to a backend.
func (e *entry) forward(w http.ResponseWriter, r *http.Request, rule *route.Rule[*plan.Target]) {
	t := rule.Target
	share := choose(t.Backends)
	if share == nil || share.Broken != "" {
		status := http.StatusInternalServerError
		if t.Owner.Kind == "Ingress" {
			status = http.StatusServiceUnavailable
		}
		respond(w, status, "the rule for this request has no backend")
		return
	}
	x := &exchange{rule: rule, target: t, share: share, backend: share.Backend, port: int(e.number)}
	ctx := context.WithValue(r.Context(), exchangeKey{}, x)
	if t.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, t.Timeout)
		defer cancel()
	}
	r = r.WithContext(ctx)
	if len(t.Mirrors) > 0 {
		e.proxy.mirror(r, x)
	}
	if s, ok := w.(*stall); ok {
		s.stream()
	}
	e.proxy.reverse.ServeHTTP(w, r)
}

// choose picks a backend by weight; nil when there is none.
func choose(list []plan.Weighted) *plan.Weighted {
	if len(list) == 1 && list[0].Weight > 0 {
		return &list[0]
	}
	sum := int64(0)
	for i := range list {
		sum += int64(list[i].Weight)
	}
	if sum <= 0 {
		return nil
	}
	n := rand.Int64N(sum)
	for i := range list {
		if n -= int64(list[i].Weight); n < 0 {
			return &list[i]
		}
	}
	return nil
}

// rewrite is the Rewrite hook of httputil.ReverseProxy. It makes the request to the backend.
func rewrite(pr *httputil.ProxyRequest) {
	x, ok := pr.In.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return
	}
	out := pr.Out
	out.URL.Scheme, out.URL.Host = "http", "backend" // a placeholder: the carrier chooses the endpoint
	if protocolFor(pr.In, x.backend.Protocol) == plan.HTTPS {
		out.URL.Scheme = "https"
	}
	out.URL.RawQuery = pr.In.URL.RawQuery // httputil drops parameters that it cannot parse; the backend may accept them
	out.Host = pr.In.Host
	out.Trailer = pr.In.Trailer // filled in when the body has been read
	pr.SetXForwarded()
	out.Header["X-Real-Ip"] = out.Header["X-Forwarded-For"]
	out.Header.Set("X-Forwarded-Port", strconv.Itoa(x.port))
	if rw := x.target.Rewrite; rw != nil {
		if rw.Host != "" {
			out.Host = rw.Host
		}
		if rw.Path != nil {
			rw := changePath(rw.Path, x.rule, pr.In.URL)
			out.URL.Path, out.URL.RawPath = rw.Path, rw.RawPath
		}
	}
	modifyHeader(out.Header, &x.target.Request)
	modifyHeader(out.Header, &x.share.Request)
}

// modify is the ModifyResponse hook of httputil.ReverseProxy. It changes the response's headers.
func modify(resp *http.Response) error {
	if x, ok := resp.Request.Context().Value(exchangeKey{}).(*exchange); ok {
		modifyHeader(resp.Header, &x.share.Response)
		modifyHeader(resp.Header, &x.target.Response)
	}
	return nil
}

func modifyHeader(h http.Header, by *plan.Headers) {
	for _, x := range by.Set {
		h[x.Name] = []string{x.Value}
	}
	for _, x := range by.Add {
		h[x.Name] = append(h[x.Name], x.Value)
	}
	for _, name := range by.Remove {
		delete(h, name)
	}
}

// changePath applies a change to a path. The rule has the prefix that matched.
func changePath(c *plan.PathChange, rule *route.Rule[*plan.Target], u *url.URL) *url.URL {
	if !c.Prefix {
		return &url.URL{Path: c.Value}
	}
	prefix := strings.TrimRight(rule.Path.Value, "/")
	if rule.Path.Kind == route.Regex {
		prefix = ""
	}
	out := &url.URL{Path: join(c.Value, strings.TrimPrefix(u.Path, prefix))}
	if rest, ok := strings.CutPrefix(u.RawPath, prefix); ok && u.RawPath != "" {
		out.RawPath = join((&url.URL{Path: c.Value}).EscapedPath(), rest)
	}
	return out
}

// join puts a new prefix before the rest of a path, with one slash between them.
func join(prefix, rest string) string {
	switch {
	case rest == "" && prefix == "":
		return "/"
	case rest == "":
		return prefix
	case strings.HasPrefix(rest, "/"):
		return strings.TrimRight(prefix, "/") + rest
	}
	return strings.TrimRight(prefix, "/") + "/" + rest
}

// redirect answers with a Location header. listener is the port in the Gateway's spec, 0 for none.
func redirect(w http.ResponseWriter, r *http.Request, rule *route.Rule[*plan.Target], to *plan.Redirect, listener int32) {
	u := &url.URL{Scheme: "http", Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
	if r.TLS != nil {
		u.Scheme = "https"
	}
	port := to.Port
	if port == 0 && to.Scheme == "" {
		port = listener
	}
	if to.Scheme != "" {
		u.Scheme = to.Scheme
	}
	host := to.Host
	if host == "" {
		host = route.NormalizeHost(r.Host)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port != 0 && !(u.Scheme == "http" && port == 80) && !(u.Scheme == "https" && port == 443) {
		host += ":" + strconv.Itoa(int(port))
	}
	u.Host = host
	if to.Path != nil {
		changed := changePath(to.Path, rule, r.URL)
		u.Path, u.RawPath = changed.Path, changed.RawPath
	}
	w.Header().Set("Location", u.String())
	w.WriteHeader(to.Status)
}

func isGRPC(r *http.Request) bool {
	return r.ProtoMajor >= 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}
