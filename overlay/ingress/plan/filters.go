package plan

import (
	"cmp"
	"fmt"
	"net/http"

	gw "sigs.k8s.io/gateway-api/apis/v1"
)

// applyFilters adds the filters of a rule to its target. It returns the reason if a filter cannot be applied, else "". A
// filter that cannot be applied is never skipped, because users rely on it.
func (b *builder) applyFilters(r *anyRoute, rule *anyRule, t *Target, c *compiled) string {
	for _, f := range rule.filters {
		switch f.Type {
		case gw.HTTPRouteFilterRequestHeaderModifier:
			t.Request = headersOf(f.RequestHeaderModifier)
		case gw.HTTPRouteFilterResponseHeaderModifier:
			t.Response = headersOf(f.ResponseHeaderModifier)
		case gw.HTTPRouteFilterRequestRedirect:
			t.Redirect = redirectOf(f.RequestRedirect)
		case gw.HTTPRouteFilterURLRewrite:
			t.Rewrite = rewriteOf(f.URLRewrite)
		case gw.HTTPRouteFilterRequestMirror:
			if m, ok := b.mirror(r, rule.protocol, f.RequestMirror, c); ok {
				t.Mirrors = append(t.Mirrors, m)
			}
		default:
			return fmt.Sprintf("filter %s is not supported", f.Type)
		}
	}
	if t.Redirect != nil && t.Rewrite != nil {
		return "RequestRedirect and URLRewrite do not go together"
	}
	return ""
}

// mirror returns the backend that gets copies of requests. If the backend does not exist, the request itself is not
// affected.
func (b *builder) mirror(r *anyRoute, protocol Protocol, f *gw.HTTPRequestMirrorFilter, c *compiled) (m Mirror, ok bool) {
	if f == nil {
		return m, false
	}
	m.Numerator, m.Denominator = 1, 1
	switch {
	case f.Percent != nil:
		m.Numerator, m.Denominator = *f.Percent, 100
	case f.Fraction != nil:
		m.Numerator, m.Denominator = f.Fraction.Numerator, 100
		if f.Fraction.Denominator != nil {
			m.Denominator = *f.Fraction.Denominator
		}
	}
	var bad *fault
	if m.Backend, bad = b.resolve(r, protocol, f.BackendRef); bad != nil {
		c.resolved = cmp.Or(c.resolved, bad)
	}
	return m, bad == nil
}

func headersOf(f *gw.HTTPHeaderFilter) (h Headers) {
	if f == nil {
		return h
	}
	for _, x := range f.Set {
		h.Set = append(h.Set, Header{http.CanonicalHeaderKey(string(x.Name)), x.Value})
	}
	for _, x := range f.Add {
		h.Add = append(h.Add, Header{http.CanonicalHeaderKey(string(x.Name)), x.Value})
	}
	for _, x := range f.Remove {
		h.Remove = append(h.Remove, http.CanonicalHeaderKey(x))
	}
	return h
}

func pathChangeOf(p *gw.HTTPPathModifier) *PathChange {
	switch {
	case p == nil:
		return nil
	case p.Type == gw.FullPathHTTPPathModifier && p.ReplaceFullPath != nil:
		return &PathChange{Value: *p.ReplaceFullPath}
	case p.Type == gw.PrefixMatchHTTPPathModifier && p.ReplacePrefixMatch != nil:
		return &PathChange{Prefix: true, Value: *p.ReplacePrefixMatch}
	}
	return nil
}

func redirectOf(f *gw.HTTPRequestRedirectFilter) *Redirect {
	r := &Redirect{Status: http.StatusFound}
	if f == nil {
		return r
	}
	if f.Scheme != nil {
		r.Scheme = *f.Scheme
	}
	if f.Hostname != nil {
		r.Host = string(*f.Hostname)
	}
	if f.Port != nil {
		r.Port = *f.Port
	}
	if f.StatusCode != nil {
		r.Status = *f.StatusCode
	}
	r.Path = pathChangeOf(f.Path)
	return r
}

func rewriteOf(f *gw.HTTPURLRewriteFilter) *Rewrite {
	if f == nil {
		return nil
	}
	r := &Rewrite{Path: pathChangeOf(f.Path)}
	if f.Hostname != nil {
		r.Host = string(*f.Hostname)
	}
	return r
}
