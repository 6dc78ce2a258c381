package plan_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/balsahq/balsa/overlay/ingress/plan"
	"github.com/balsahq/balsa/overlay/ingress/route"
)

func ptr[T any](v T) *T { return &v }

var ports = plan.Config{HTTPPort: 80, HTTPSPort: 443}

// objects know the Services default/a and other/b, port 80, and the certificates default/cert and other/cert.
func objects() *plan.Objects {
	return &plan.Objects{
		Classes:        []*netv1.IngressClass{{ObjectMeta: metav1.ObjectMeta{Name: "balsa"}, Spec: netv1.IngressClassSpec{Controller: plan.IngressController}}},
		GatewayClasses: []*gw.GatewayClass{{ObjectMeta: metav1.ObjectMeta{Name: "balsa"}, Spec: gw.GatewayClassSpec{ControllerName: plan.GatewayController}}},
		Service: func(ns, name string) *v1.Service {
			if ns+"/"+name != "default/a" && ns+"/"+name != "other/b" {
				return nil
			}
			return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: v1.ServiceSpec{Ports: []v1.ServicePort{
				{Name: "http", Port: 80}, {Name: "grpc", Port: 90, AppProtocol: ptr("kubernetes.io/h2c")}, {Name: "dns", Port: 53, Protocol: v1.ProtocolUDP},
			}}}
		},
		Certificate: func(ns, name string) (*tls.Certificate, error) {
			switch name {
			case "cert":
				return &tls.Certificate{}, nil
			case "later":
				return nil, plan.ErrPending
			}
			return nil, errors.New("there is no such Secret")
		},
		NamespaceLabels: func(name string) (map[string]string, bool) { return map[string]string{"name": name}, true },
	}
}

func gateway(change func(*gw.Gateway)) *gw.Gateway {
	g := &gw.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gate", Generation: 3}, Spec: gw.GatewaySpec{
		GatewayClassName: "balsa", Listeners: []gw.Listener{{Name: "http", Port: 80, Protocol: gw.HTTPProtocolType}},
	}}
	change(g)
	return g
}

func httpRoute(namespace string, change func(*gw.HTTPRoute)) *gw.HTTPRoute {
	r := &gw.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "route"}, Spec: gw.HTTPRouteSpec{
		CommonRouteSpec: gw.CommonRouteSpec{ParentRefs: []gw.ParentReference{{Name: "gate", Namespace: ptr(gw.Namespace("default"))}}},
		Rules:           []gw.HTTPRouteRule{{BackendRefs: []gw.HTTPBackendRef{backendRef("a")}}},
	}}
	change(r)
	return r
}

func backendRef(name string) gw.HTTPBackendRef {
	return gw.HTTPBackendRef{BackendRef: gw.BackendRef{BackendObjectReference: gw.BackendObjectReference{Name: gw.ObjectName(name), Port: ptr(gw.PortNumber(80))}}}
}

func states(list []metav1.Condition) string {
	var out []string
	for _, c := range list {
		if !(c.Type == "Conflicted" && c.Status == metav1.ConditionFalse) {
			out = append(out, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestConditionsOfListeners(t *testing.T) {
	const good = "Accepted=True/Accepted Programmed=True/Programmed ResolvedRefs=True/ResolvedRefs"
	https := func(refs ...gw.SecretObjectReference) func(*gw.Gateway) {
		return func(g *gw.Gateway) {
			g.Spec.Listeners[0] = gw.Listener{Name: "https", Port: 443, Protocol: gw.HTTPSProtocolType, TLS: &gw.ListenerTLSConfig{CertificateRefs: refs}}
		}
	}
	for name, c := range map[string]struct {
		change func(*gw.Gateway)
		want   string
	}{
		"http":             {func(*gw.Gateway) {}, good},
		"https":            {https(gw.SecretObjectReference{Name: "cert"}), good},
		"no such secret":   {https(gw.SecretObjectReference{Name: "none"}), "Accepted=True/Accepted Programmed=False/Invalid ResolvedRefs=False/InvalidCertificateRef"},
		"no secret at all": {https(), "Accepted=True/Accepted Programmed=False/Invalid ResolvedRefs=False/InvalidCertificateRef"},
		"not granted":      {https(gw.SecretObjectReference{Name: "cert", Namespace: ptr(gw.Namespace("other"))}), "Accepted=True/Accepted Programmed=False/Invalid ResolvedRefs=False/RefNotPermitted"},
		"no Secret":        {https(gw.SecretObjectReference{Name: "cert", Kind: ptr(gw.Kind("ConfigMap"))}), "Accepted=True/Accepted Programmed=False/Invalid ResolvedRefs=False/InvalidCertificateRef"},
		"tcp":              {func(g *gw.Gateway) { g.Spec.Listeners[0].Protocol = gw.TCPProtocolType }, "Accepted=False/UnsupportedProtocol Programmed=False/Invalid ResolvedRefs=True/ResolvedRefs"},
		"http on 443":      {func(g *gw.Gateway) { g.Spec.Listeners[0].Port = 443 }, "Accepted=False/PortUnavailable Conflicted=True/ProtocolConflict Programmed=False/Invalid ResolvedRefs=True/ResolvedRefs"},
		"unknown kind": {func(g *gw.Gateway) {
			g.Spec.Listeners[0].AllowedRoutes = &gw.AllowedRoutes{Kinds: []gw.RouteGroupKind{{Kind: "TCPRoute"}}}
		}, "Accepted=True/Accepted Programmed=False/Invalid ResolvedRefs=False/InvalidRouteKinds"},
		"clients' certificates": {func(g *gw.Gateway) { g.Spec.TLS = &gw.GatewayTLSConfig{Frontend: &gw.FrontendTLSConfig{}} },
			"Accepted=False/Invalid Programmed=False/Invalid ResolvedRefs=True/ResolvedRefs"},
	} {
		o := objects()
		o.Gateways = []*gw.Gateway{gateway(c.change)}
		p := plan.Build(ports, o)
		if got := states(p.Gateways[0].Listeners[0].Conditions); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
		if served := strings.Contains(c.want, "Programmed=True"); served != (len(p.Ports) == 1) {
			t.Errorf("%s: ports %v", name, p.Ports)
		}
	}
}

func TestConditionsOfRoutes(t *testing.T) {
	for name, c := range map[string]struct {
		namespace string
		gate      func(*gw.Gateway)
		route     func(*gw.HTTPRoute)
		want      string
		attached  int32
	}{
		"good": {"default", nil, nil, "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs", 1},
		"no such listener": {"default", nil, func(r *gw.HTTPRoute) { r.Spec.ParentRefs[0].SectionName = ptr(gw.SectionName("none")) },
			"Accepted=False/NoMatchingParent ResolvedRefs=True/ResolvedRefs", 0},
		"another namespace": {"other", nil, func(r *gw.HTTPRoute) { r.Spec.Rules[0].BackendRefs[0].Name = "b" },
			"Accepted=False/NotAllowedByListeners ResolvedRefs=True/ResolvedRefs", 0},
		"a namespace by label": {"other", func(g *gw.Gateway) {
			g.Spec.Listeners[0].AllowedRoutes = &gw.AllowedRoutes{Namespaces: &gw.RouteNamespaces{From: ptr(gw.NamespacesFromSelector), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": "other"}}}}
		}, func(r *gw.HTTPRoute) { r.Spec.Rules[0].BackendRefs[0].Name = "b" }, "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs", 1},
		"no common hostname": {"default", func(g *gw.Gateway) { g.Spec.Listeners[0].Hostname = ptr(gw.Hostname("*.a.com")) },
			func(r *gw.HTTPRoute) { r.Spec.Hostnames = []gw.Hostname{"b.com"} }, "Accepted=False/NoMatchingListenerHostname ResolvedRefs=True/ResolvedRefs", 0},
		"no such Service": {"default", nil, func(r *gw.HTTPRoute) { r.Spec.Rules[0].BackendRefs[0].Name = "none" },
			"Accepted=True/Accepted ResolvedRefs=False/BackendNotFound", 1},
		"no Service": {"default", nil, func(r *gw.HTTPRoute) { r.Spec.Rules[0].BackendRefs[0].Kind = ptr(gw.Kind("Bucket")) },
			"Accepted=True/Accepted ResolvedRefs=False/InvalidKind", 1},
		"a Service not granted": {"default", nil, func(r *gw.HTTPRoute) {
			r.Spec.Rules[0].BackendRefs[0].Name, r.Spec.Rules[0].BackendRefs[0].Namespace = "b", ptr(gw.Namespace("other"))
		}, "Accepted=True/Accepted ResolvedRefs=False/RefNotPermitted", 1},
		"an unknown filter": {"default", nil, func(r *gw.HTTPRoute) { r.Spec.Rules[0].Filters = []gw.HTTPRouteFilter{{Type: gw.HTTPRouteFilterCORS}} },
			"Accepted=False/UnsupportedValue ResolvedRefs=True/ResolvedRefs", 1},
		"one unknown filter of two": {"default", nil, func(r *gw.HTTPRoute) {
			r.Spec.Rules = append(r.Spec.Rules, gw.HTTPRouteRule{Filters: []gw.HTTPRouteFilter{{Type: gw.HTTPRouteFilterCORS}}})
		}, "Accepted=True/Accepted PartiallyInvalid=True/UnsupportedValue ResolvedRefs=True/ResolvedRefs", 1},
		"a malformed pattern": {"default", nil, func(r *gw.HTTPRoute) {
			r.Spec.Rules[0].Matches = []gw.HTTPRouteMatch{{Path: &gw.HTTPPathMatch{Type: ptr(gw.PathMatchRegularExpression), Value: ptr("(")}}}
		}, "Accepted=False/UnsupportedValue ResolvedRefs=True/ResolvedRefs", 1},
	} {
		o, same := objects(), func(*gw.Gateway) {}
		if c.gate != nil {
			same = c.gate
		}
		if c.route == nil {
			c.route = func(*gw.HTTPRoute) {}
		}
		o.Gateways, o.HTTPRoutes = []*gw.Gateway{gateway(same)}, []*gw.HTTPRoute{httpRoute(c.namespace, c.route)}
		p := plan.Build(ports, o)
		if got := states(p.Routes[0].Parents[0].Conditions); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
		if got := p.Gateways[0].Listeners[0].AttachedRoutes; got != c.attached {
			t.Errorf("%s: %d attached routes", name, got)
		}
	}
}

func TestGrantsAllowWhatTheyName(t *testing.T) {
	o := objects()
	o.Gateways = []*gw.Gateway{gateway(func(g *gw.Gateway) {
		g.Spec.Listeners[0] = gw.Listener{Name: "https", Port: 443, Protocol: gw.HTTPSProtocolType, TLS: &gw.ListenerTLSConfig{
			CertificateRefs: []gw.SecretObjectReference{{Name: "cert", Namespace: ptr(gw.Namespace("other"))}}}}
	})}
	o.HTTPRoutes = []*gw.HTTPRoute{httpRoute("default", func(r *gw.HTTPRoute) {
		r.Spec.Rules[0].BackendRefs[0].Name, r.Spec.Rules[0].BackendRefs[0].Namespace = "b", ptr(gw.Namespace("other"))
	})}
	granted := func(from string, to ...gw.ReferenceGrantTo) bool {
		o.Grants = []*gw.ReferenceGrant{{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "g"}, Spec: gw.ReferenceGrantSpec{
			From: []gw.ReferenceGrantFrom{{Group: gw.GroupName, Kind: "Gateway", Namespace: gw.Namespace(from)}, {Group: gw.GroupName, Kind: "HTTPRoute", Namespace: gw.Namespace(from)}}, To: to,
		}}}
		p := plan.Build(ports, o)
		secret, service := len(p.Secrets) == 1, len(p.Backends) == 1
		if secret != service {
			t.Errorf("from %s to %v: secret %v, service %v", from, to, secret, service)
		}
		return secret
	}
	for _, c := range []struct {
		from string
		to   []gw.ReferenceGrantTo
		want bool
	}{
		{"default", []gw.ReferenceGrantTo{{Kind: "Secret"}, {Kind: "Service"}}, true},
		{"default", []gw.ReferenceGrantTo{{Kind: "Secret", Name: ptr(gw.ObjectName("cert"))}, {Kind: "Service", Name: ptr(gw.ObjectName("b"))}}, true},
		{"default", []gw.ReferenceGrantTo{{Kind: "Secret", Name: ptr(gw.ObjectName("x"))}, {Kind: "Service", Name: ptr(gw.ObjectName("x"))}}, false},
		{"elsewhere", []gw.ReferenceGrantTo{{Kind: "Secret"}, {Kind: "Service"}}, false},
		{"default", []gw.ReferenceGrantTo{{Group: "x", Kind: "Secret"}, {Group: "x", Kind: "Service"}}, false},
	} {
		if got := granted(c.from, c.to...); got != c.want {
			t.Errorf("from %s to %v: %v", c.from, c.to, got)
		}
	}
}

func ingress(name string, created int64, change func(*netv1.Ingress)) *netv1.Ingress {
	in := &netv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: metav1.Unix(created, 0)}, Spec: netv1.IngressSpec{
		IngressClassName: ptr("balsa"), Rules: []netv1.IngressRule{{Host: "a.com", IngressRuleValue: netv1.IngressRuleValue{HTTP: &netv1.HTTPIngressRuleValue{
			Paths: []netv1.HTTPIngressPath{{Path: "/", PathType: ptr(netv1.PathTypeImplementationSpecific), Backend: netv1.IngressBackend{Service: &netv1.IngressServiceBackend{Name: "a", Port: netv1.ServiceBackendPort{Number: 80}}}}},
		}}}},
	}}
	change(in)
	return in
}

func TestTheOldestIngressKeepsAHostAndItsCertificate(t *testing.T) {
	o := objects()
	first, second := &tls.Certificate{}, &tls.Certificate{}
	o.Certificate = func(_, name string) (*tls.Certificate, error) {
		return map[string]*tls.Certificate{"one": first, "two": second}[name], nil
	}
	tlsOf := func(secret string) func(*netv1.Ingress) {
		return func(in *netv1.Ingress) {
			in.Spec.TLS = []netv1.IngressTLS{{Hosts: []string{"a.com"}, SecretName: secret}}
		}
	}
	o.Ingresses = []*netv1.Ingress{ingress("younger", 2, tlsOf("two")), ingress("older", 1, tlsOf("one"))}
	p := plan.Build(ports, o)
	if list, _ := p.Ports[443].Certificates.Get("a.com"); len(list) != 1 || list[0] != first {
		t.Error("the younger Ingress took the name")
	}
	r, _ := p.Ports[80].Ingress.Find(&route.Request{Host: "a.com", Path: "/"})
	if r == nil || r.Target.Owner.Name != "older" {
		t.Errorf("rule %v", r)
	}
}

func TestProblemsOfIngresses(t *testing.T) {
	for want, change := range map[string]func(*netv1.Ingress){
		"":                     func(in *netv1.Ingress) { in.Annotations = map[string]string{plan.AnnotationBackendProtocol: "GRPC"} },
		"there is no Service":  func(in *netv1.Ingress) { in.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name = "none" },
		"has no such TCP port": func(in *netv1.Ingress) { in.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Port.Number = 53 },
		"resource backends": func(in *netv1.Ingress) {
			in.Spec.Rules[0].HTTP.Paths[0].Backend = netv1.IngressBackend{Resource: &v1.TypedLocalObjectReference{}}
		},
		"give true or false":      func(in *netv1.Ingress) { in.Annotations = map[string]string{plan.AnnotationForceHTTPS: "perhaps"} },
		"give http, https":        func(in *netv1.Ingress) { in.Annotations = map[string]string{plan.AnnotationBackendProtocol: "ftp"} },
		"a path that starts with": func(in *netv1.Ingress) { in.Annotations = map[string]string{plan.AnnotationRewritePrefix: "x"} },
		"there is no such Secret": func(in *netv1.Ingress) { in.Spec.TLS = []netv1.IngressTLS{{SecretName: "none"}} },
	} {
		o := objects()
		o.Ingresses = []*netv1.Ingress{ingress("one", 1, change)}
		p := plan.Build(ports, o)
		if want == "" && len(p.Problems) > 0 || want != "" && (len(p.Problems) != 1 || !strings.Contains(p.Problems[0].Message, want)) {
			t.Errorf("%q: %v", want, p.Problems)
		}
	}
	o := objects()
	o.Ingresses = []*netv1.Ingress{ingress("one", 1, func(in *netv1.Ingress) { in.Spec.TLS = []netv1.IngressTLS{{SecretName: "later"}} })}
	if p := plan.Build(ports, o); len(p.Problems) > 0 || len(p.Secrets) != 1 {
		t.Errorf("a Secret that is being read: %v", p.Problems)
	}
}

func TestGRPCRoutesSpeakHTTP2(t *testing.T) {
	o := objects()
	o.Gateways = []*gw.Gateway{gateway(func(*gw.Gateway) {})}
	o.GRPCRoutes = []*gw.GRPCRoute{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "grpc"}, Spec: gw.GRPCRouteSpec{
		CommonRouteSpec: gw.CommonRouteSpec{ParentRefs: []gw.ParentReference{{Name: "gate"}}},
		Rules: []gw.GRPCRouteRule{{
			Matches:     []gw.GRPCRouteMatch{{Method: &gw.GRPCMethodMatch{Service: ptr("x.Y"), Method: ptr("Do")}}, {Method: &gw.GRPCMethodMatch{Service: ptr("x.Z")}}},
			BackendRefs: []gw.GRPCBackendRef{{BackendRef: gw.BackendRef{BackendObjectReference: backendRef("a").BackendObjectReference}}},
		}},
	}}}
	p := plan.Build(ports, o)
	var rules *route.Table[*plan.Target]
	p.Ports[80].Listeners.Find("any", func(l *plan.Listener, _ int) bool { rules = l.Rules; return true })
	for path, want := range map[string]bool{"/x.Y/Do": true, "/x.Y/Other": false, "/x.Z/Any": true, "/x.Zz/Any": false} {
		r, _ := rules.Find(&route.Request{Path: path})
		if (r != nil) != want || r != nil && r.Target.Backends[0].Backend.Protocol != plan.H2C {
			t.Errorf("%s: %v", path, r)
		}
	}
}

// A plan of many Ingresses is made again with each change of one.
func BenchmarkBuild(b *testing.B) {
	o := objects()
	for i := range 1000 {
		o.Ingresses = append(o.Ingresses, ingress(fmt.Sprint(i), int64(i), func(in *netv1.Ingress) { in.Spec.Rules[0].Host = fmt.Sprintf("h%d.example.com", i) }))
	}
	b.ReportAllocs()
	for b.Loop() {
		plan.Build(ports, o)
	}
}
