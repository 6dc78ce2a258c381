package plan

import (
	"cmp"
	"fmt"
	"regexp"

	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/balsahq/balsa/overlay/ingress/route"
)

func fromHTTP(r *gw.HTTPRoute) *anyRoute {
	out := &anyRoute{kind: "HTTPRoute", meta: r, parents: r.Spec.ParentRefs, hostnames: r.Spec.Hostnames}
	for i := range r.Spec.Rules {
		from := &r.Spec.Rules[i]
		rule := anyRule{filters: from.Filters, backends: from.BackendRefs, timeouts: from.Timeouts}
		for j := range from.Matches {
			m, err := httpMatch(&from.Matches[j])
			if err != nil {
				rule.fault = err.Error()
				continue // requests of the remaining matches are answered with an error
			}
			rule.matches = append(rule.matches, m)
		}
		out.rules = append(out.rules, rule)
	}
	return out
}

func httpMatch(from *gw.HTTPRouteMatch) (m match, err error) {
	m.path = route.AnyPath
	if p := from.Path; p != nil && p.Value != nil {
		kind := gw.PathMatchPathPrefix
		if p.Type != nil {
			kind = *p.Type
		}
		switch kind {
		case gw.PathMatchExact:
			m.path = route.Path{Kind: route.Exact, Value: *p.Value}
		case gw.PathMatchPathPrefix:
			m.path = route.Path{Kind: route.Prefix, Value: *p.Value}
		case gw.PathMatchRegularExpression:
			if m.path, err = route.RegexPath(*p.Value); err != nil {
				return match{path: route.AnyPath}, fmt.Errorf("path: %w", err)
			}
		default:
			return m, fmt.Errorf("path match type %s is not supported", kind)
		}
	}
	if from.Method != nil {
		m.method = string(*from.Method)
	}
	for _, h := range from.Headers {
		v, err := route.HeaderValue(string(h.Name), h.Value, h.Type != nil && *h.Type == gw.HeaderMatchRegularExpression)
		if err != nil {
			return m, fmt.Errorf("header %s: %w", h.Name, err)
		}
		m.headers = appendFirst(m.headers, v)
	}
	for _, q := range from.QueryParams {
		v, err := route.QueryValue(string(q.Name), q.Value, q.Type != nil && *q.Type == gw.QueryParamMatchRegularExpression)
		if err != nil {
			return m, fmt.Errorf("query parameter %s: %w", q.Name, err)
		}
		m.query = appendFirst(m.query, v)
	}
	return m, nil
}

// appendFirst appends a value unless the list has its name already: of several entries for one name the first counts.
func appendFirst(list []route.Value, v route.Value) []route.Value {
	for i := range list {
		if list[i].Name == v.Name {
			return list
		}
	}
	return append(list, v)
}

func fromGRPC(r *gw.GRPCRoute) *anyRoute {
	out := &anyRoute{kind: "GRPCRoute", meta: r, parents: r.Spec.ParentRefs, hostnames: r.Spec.Hostnames}
	for i := range r.Spec.Rules {
		from := &r.Spec.Rules[i]
		rule := anyRule{protocol: H2C}
		for _, f := range from.Filters {
			rule.filters = append(rule.filters, likeHTTP(f))
		}
		for _, ref := range from.BackendRefs {
			to := gw.HTTPBackendRef{BackendRef: ref.BackendRef}
			for _, f := range ref.Filters {
				to.Filters = append(to.Filters, likeHTTP(f))
			}
			rule.backends = append(rule.backends, to)
		}
		for j := range from.Matches {
			m, err := grpcMatch(&from.Matches[j])
			if err != nil {
				rule.fault = err.Error()
				continue
			}
			rule.matches = append(rule.matches, m)
		}
		out.rules = append(out.rules, rule)
	}
	return out
}

func likeHTTP(f gw.GRPCRouteFilter) gw.HTTPRouteFilter {
	return gw.HTTPRouteFilter{
		Type: gw.HTTPRouteFilterType(f.Type), RequestHeaderModifier: f.RequestHeaderModifier,
		ResponseHeaderModifier: f.ResponseHeaderModifier, RequestMirror: f.RequestMirror, ExtensionRef: f.ExtensionRef,
	}
}

func grpcMatch(from *gw.GRPCRouteMatch) (m match, err error) {
	m.path = route.AnyPath
	if f := from.Method; f != nil {
		var service, method string
		if f.Service != nil {
			service = *f.Service
		}
		if f.Method != nil {
			method = *f.Method
		}
		switch regex := f.Type != nil && *f.Type == gw.GRPCMethodMatchRegularExpression; {
		case regex:
			m.path, err = route.RegexPath("/" + cmp.Or(service, "[^/]+") + "/" + cmp.Or(method, "[^/]+"))
		case service != "" && method != "":
			m.path = route.Path{Kind: route.Exact, Value: "/" + service + "/" + method}
		case service != "":
			m.path = route.Path{Kind: route.Prefix, Value: "/" + service}
		case method != "":
			m.path, err = route.RegexPath("/[^/]+/" + regexp.QuoteMeta(method))
		}
		if err != nil {
			return match{path: route.AnyPath}, fmt.Errorf("method: %w", err)
		}
	}
	for _, h := range from.Headers {
		v, err := route.HeaderValue(string(h.Name), h.Value, h.Type != nil && *h.Type == gw.GRPCHeaderMatchRegularExpression)
		if err != nil {
			return m, fmt.Errorf("header %s: %w", h.Name, err)
		}
		m.headers = appendFirst(m.headers, v)
	}
	return m, nil
}
