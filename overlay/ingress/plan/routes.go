package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/balsahq/balsa/overlay/ingress/route"
)

// anyRoute is the common form of HTTPRoute and GRPCRoute.
type anyRoute struct {
	kind      string
	meta      metav1.Object
	parents   []gw.ParentReference
	hostnames []gw.Hostname
	rules     []anyRule
}

type anyRule struct {
	matches  []match
	filters  []gw.HTTPRouteFilter
	backends []gw.HTTPBackendRef
	timeouts *gw.HTTPRouteTimeouts
	protocol Protocol // the default if the Service port has no appProtocol
	fault    string   // why the rule cannot be served; "" if it can
}

type match struct {
	path           route.Path
	method         string
	headers, query []route.Value
}

// routes attaches the routes to the listeners of this controller's Gateways; the key is namespace/name.
func (b *builder) routes(listeners map[string][]*listener) {
	var all []*anyRoute
	for _, r := range b.o.HTTPRoutes {
		if r.DeletionTimestamp == nil {
			all = append(all, fromHTTP(r))
		}
	}
	for _, r := range b.o.GRPCRoutes {
		if r.DeletionTimestamp == nil {
			all = append(all, fromGRPC(r))
		}
	}
	for _, r := range all {
		state := RouteState{Kind: r.kind, Namespace: r.meta.GetNamespace(), Name: r.meta.GetName(), Generation: r.meta.GetGeneration()}
		var done *compiled // once for all parents
		for _, parent := range r.parents {
			list, ours := listeners[parentKey(r, parent)]
			if !ours || parent.Kind != nil && *parent.Kind != "Gateway" || parent.Group != nil && *parent.Group != gw.GroupName {
				continue
			}
			if done == nil {
				done = b.compile(r)
			}
			accepted := b.attach(r, done, parent, list)
			state.Parents = append(state.Parents, gw.RouteParentStatus{
				ParentRef: parent, ControllerName: GatewayController, Conditions: done.conditions(r, accepted, state.Generation),
			})
		}
		if len(state.Parents) > 0 {
			b.plan.Routes = append(b.plan.Routes, state)
		}
	}
}

func parentKey(r *anyRoute, p gw.ParentReference) string {
	namespace := r.meta.GetNamespace()
	if p.Namespace != nil {
		namespace = string(*p.Namespace)
	}
	return namespace + "/" + string(p.Name)
}

// attach adds a route's rules to the listeners of one parent. It returns the fault if the route cannot attach, else nil.
func (b *builder) attach(r *anyRoute, c *compiled, parent gw.ParentReference, list []*listener) *fault {
	why := &fault{"Accepted", string(gw.RouteReasonNoMatchingParent), "the Gateway has no such listener"}
	attached := false
	for _, l := range list {
		if parent.SectionName != nil && *parent.SectionName != l.spec.Name || parent.Port != nil && *parent.Port != l.spec.Port {
			continue
		}
		if !b.allows(l, r.kind, r.meta.GetNamespace()) {
			if !attached && why.reason == string(gw.RouteReasonNoMatchingParent) {
				why = &fault{"Accepted", string(gw.RouteReasonNotAllowedByListeners), "the listeners' allowedRoutes do not include this route"}
			}
			continue
		}
		hosts := commonHosts(l, r)
		if len(hosts) == 0 {
			why = &fault{"Accepted", string(gw.RouteReasonNoMatchingListenerHostname), "the route's and the listeners' hostnames have nothing in common"}
			continue
		}
		attached = true
		l.status.AttachedRoutes++
		if l.site == nil {
			continue
		}
		for _, host := range hosts {
			for _, rule := range c.rules {
				rule.Host = host
				l.site.rules = append(l.site.rules, rule)
			}
		}
	}
	if attached {
		return nil
	}
	return why
}

// commonHosts returns the hosts that a listener and a route have in common; "" is any host.
func commonHosts(l *listener, r *anyRoute) (hosts []string) {
	own := ""
	if l.spec.Hostname != nil {
		own = string(*l.spec.Hostname)
	}
	if len(r.hostnames) == 0 {
		return []string{own}
	}
	seen := map[string]bool{}
	for _, h := range r.hostnames {
		if host, ok := route.Intersect(own, string(h)); ok && !seen[host] {
			seen[host] = true
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// compiled is a route's rules with their targets and faults, without hosts.
type compiled struct {
	rules    []route.Rule[*Target]
	resolved *fault   // the fault of condition ResolvedRefs
	invalid  []string // for rules that are answered with an error: the reasons
	partly   []string // for backends that are answered with an error: the reasons
}

func (c *compiled) conditions(r *anyRoute, accepted *fault, generation int64) []metav1.Condition {
	var out []metav1.Condition
	bad := append(slices.Clone(c.invalid), c.partly...)
	switch {
	case accepted != nil:
		out = append(out, condition("Accepted", "False", accepted.reason, accepted.message, generation))
	case len(c.invalid) > 0 && len(c.invalid) == len(r.rules):
		out = append(out, condition("Accepted", "False", string(gw.RouteReasonUnsupportedValue), c.invalid[0], generation))
	default:
		out = append(out, condition("Accepted", "True", string(gw.RouteReasonAccepted), "", generation))
		if len(bad) > 0 {
			out = append(out, condition("PartiallyInvalid", "True", string(gw.RouteReasonUnsupportedValue), "some requests are answered with status 500: "+bad[0], generation))
		}
	}
	if c.resolved != nil {
		return append(out, condition("ResolvedRefs", "False", c.resolved.reason, c.resolved.message, generation))
	}
	return append(out, condition("ResolvedRefs", "True", string(gw.RouteReasonResolvedRefs), "", generation))
}

func (b *builder) compile(r *anyRoute) *compiled {
	c := &compiled{}
	owner := reference(gw.GroupVersion.String(), r.kind, r.meta)
	for i := range r.rules {
		rule := &r.rules[i]
		t := &Target{Owner: owner, Broken: rule.fault}
		if t.Broken == "" {
			t.Broken = b.applyFilters(r, rule, t, c)
		}
		if t.Broken == "" {
			t.Broken = t.timeouts(rule.timeouts)
		}
		if t.Broken != "" {
			c.invalid = append(c.invalid, t.Broken)
		}
		for j := range rule.backends {
			t.Backends = append(t.Backends, b.weighted(r, rule, &rule.backends[j], c))
		}
		if len(rule.matches) == 0 && rule.fault == "" {
			rule.matches = []match{{path: route.AnyPath}}
		}
		for j, m := range rule.matches {
			c.rules = append(c.rules, route.Rule[*Target]{
				Path: m.path, Method: m.method, Headers: m.headers, Query: m.query, Rank: rankOf(r.meta, i<<16|j), Target: t,
			})
		}
	}
	return c
}

func (t *Target) timeouts(from *gw.HTTPRouteTimeouts) string {
	if from == nil {
		return ""
	}
	for _, d := range []struct {
		text *gw.Duration
		to   *time.Duration
	}{{from.Request, &t.Timeout}, {from.BackendRequest, &t.AttemptTimeout}} {
		if d.text == nil {
			continue
		}
		v, err := time.ParseDuration(string(*d.text))
		if err != nil || v < 0 {
			return fmt.Sprintf("timeout %q is no duration such as 10s", *d.text)
		}
		*d.to = v
	}
	return ""
}

func (b *builder) weighted(r *anyRoute, rule *anyRule, ref *gw.HTTPBackendRef, c *compiled) Weighted {
	w := Weighted{Weight: 1}
	if ref.Weight != nil {
		w.Weight = *ref.Weight
	}
	backend, f := b.resolve(r, rule.protocol, ref.BackendObjectReference)
	w.Backend = backend
	if f != nil {
		w.Broken, c.resolved = f.message, cmp.Or(c.resolved, f)
		return w
	}
	for _, filter := range ref.Filters {
		switch filter.Type {
		case gw.HTTPRouteFilterRequestHeaderModifier:
			w.Request = headersOf(filter.RequestHeaderModifier)
		case gw.HTTPRouteFilterResponseHeaderModifier:
			w.Response = headersOf(filter.ResponseHeaderModifier)
		default:
			w.Broken = fmt.Sprintf("filter %s is not supported at a backendRef", filter.Type)
			c.partly = append(c.partly, w.Broken)
		}
	}
	return w
}

// resolve returns the backend of a backendRef.
func (b *builder) resolve(r *anyRoute, protocol Protocol, ref gw.BackendObjectReference) (Backend, *fault) {
	no := func(reason gw.RouteConditionReason, format string, args ...any) (Backend, *fault) {
		return Backend{}, &fault{"ResolvedRefs", string(reason), fmt.Sprintf(format, args...)}
	}
	namespace := r.meta.GetNamespace()
	if ref.Namespace != nil {
		namespace = string(*ref.Namespace)
	}
	if ref.Group != nil && *ref.Group != "" || ref.Kind != nil && *ref.Kind != "Service" {
		return no(gw.RouteReasonInvalidKind, "backendRef %s is no Service", ref.Name)
	}
	if !b.granted(grant{r.kind, r.meta.GetNamespace(), "", "Service", namespace, string(ref.Name)}) {
		return no(gw.RouteReasonRefNotPermitted, "no ReferenceGrant in namespace %s lets this route use Service %s", namespace, ref.Name)
	}
	if ref.Port == nil {
		return no(gw.RouteReasonBackendNotFound, "backendRef %s names no port", ref.Name)
	}
	svc := b.service(namespace, string(ref.Name))
	if svc == nil {
		return no(gw.RouteReasonBackendNotFound, "there is no Service %s/%s", namespace, ref.Name)
	}
	found, broken := backendOf(svc, func(p *v1.ServicePort) bool { return p.Port == *ref.Port })
	if broken != "" {
		return no(gw.RouteReasonBackendNotFound, "%s (asked for %d)", broken, *ref.Port)
	}
	if protocol != "" && found.Protocol == HTTP {
		found.Protocol = protocol
	}
	return b.addBackend(found), nil
}
