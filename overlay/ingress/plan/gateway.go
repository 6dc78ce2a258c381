package plan

import (
	"crypto/tls"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/balsahq/balsa/overlay/ingress/route"
)

// listener is a Gateway's listener while a plan is built.
type listener struct {
	spec    *gw.Listener
	gateway *gw.Gateway
	owner   v1.ObjectReference
	kinds   []gw.RouteGroupKind // that may attach
	site    *site               // nil if the listener is not served
	status  gw.ListenerStatus
}

// site is a port and a hostname, which listeners of several Gateways may share.
type site struct {
	port  int32 // as in the Gateways' specs
	rules []route.Rule[*Target]
}

type siteKey struct {
	number uint16
	host   string
}

// gateways adds the listeners of all Gateways of this controller's classes, and their routes.
func (b *builder) gateways() {
	ours := map[gw.ObjectName]bool{}
	for _, c := range b.o.GatewayClasses {
		if c.Spec.ControllerName == GatewayController {
			ours[gw.ObjectName(c.Name)] = true
			b.plan.Classes = append(b.plan.Classes, c)
		}
	}
	sites, listeners := map[siteKey]*site{}, map[string][]*listener{}
	for _, g := range byAge(b.o.Gateways) {
		if !ours[g.Spec.GatewayClassName] || g.DeletionTimestamp != nil {
			continue
		}
		key := g.Namespace + "/" + g.Name
		listeners[key] = nil
		refused := unsupported(g)
		for i := range g.Spec.Listeners {
			l := &listener{spec: &g.Spec.Listeners[i], gateway: g, owner: reference(gw.GroupVersion.String(), "Gateway", g)}
			b.listener(l, sites, refused)
			listeners[key] = append(listeners[key], l)
		}
		b.plan.Gateways = append(b.plan.Gateways, GatewayState{Gateway: g, Conditions: gatewayConditions(g, listeners[key], refused)})
	}
	if len(b.plan.Gateways) == 0 {
		return
	}
	b.routes(listeners)
	for i := range b.plan.Gateways {
		s := &b.plan.Gateways[i]
		for _, l := range listeners[s.Gateway.Namespace+"/"+s.Gateway.Name] {
			s.Listeners = append(s.Listeners, l.status)
		}
	}
	for key, s := range sites {
		b.plan.Ports[key.number].Listeners.Set(key.host, &Listener{Port: s.port, Rules: route.New(route.ManyLabels, s.rules)})
	}
}

// unsupported returns why a Gateway cannot be served at all, else "". A setting that protects it must never be ignored.
func unsupported(g *gw.Gateway) string {
	switch {
	case g.Spec.TLS != nil && g.Spec.TLS.Frontend != nil:
		return "validating clients' certificates (spec.tls.frontend) is not supported"
	case g.Spec.TLS != nil && g.Spec.TLS.Backend != nil:
		return "client certificates towards backends (spec.tls.backend) are not supported"
	case g.Spec.Infrastructure != nil && g.Spec.Infrastructure.ParametersRef != nil:
		return "spec.infrastructure.parametersRef is not supported"
	case len(g.Spec.Addresses) > 0:
		return "addresses are the nodes': leave spec.addresses empty"
	}
	return ""
}

func condition(kind, status, reason, message string, generation int64) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionStatus(status), Reason: reason, Message: message, ObservedGeneration: generation}
}

func yesNo(yes bool) string {
	if yes {
		return "True"
	}
	return "False"
}

func gatewayConditions(g *gw.Gateway, list []*listener, refused string) []metav1.Condition {
	if refused != "" {
		reason := string(gw.GatewayReasonInvalidParameters)
		if len(g.Spec.Addresses) > 0 {
			reason = string(gw.GatewayReasonUnsupportedAddress)
		}
		return []metav1.Condition{
			condition("Accepted", "False", reason, refused, g.Generation),
			condition("Programmed", "False", string(gw.GatewayReasonInvalid), refused, g.Generation),
		}
	}
	served, reason, message := 0, string(gw.GatewayReasonAccepted), "served by the nodes"
	for _, l := range list {
		if l.site != nil {
			served++
		}
	}
	if served < len(list) {
		reason, message = string(gw.GatewayReasonListenersNotValid), "see the conditions of the listeners"
	}
	programmed := string(gw.GatewayReasonProgrammed)
	if served == 0 {
		programmed = string(gw.GatewayReasonInvalid)
	}
	return []metav1.Condition{
		condition("Accepted", yesNo(served > 0), reason, message, g.Generation),
		condition("Programmed", yesNo(served > 0), programmed, message, g.Generation),
	}
}

// fault is a condition that a listener or route does not meet.
type fault struct{ condition, reason, message string }

func (b *builder) listener(l *listener, sites map[siteKey]*site, refused string) {
	certs, faults := b.validate(l, refused)
	number, withTLS := b.portNumber(l.spec.Port), l.spec.Protocol == gw.HTTPSProtocolType
	taken := b.plan.Ports[number]
	switch {
	case number == b.cfg.HTTPPort && withTLS, number == b.cfg.HTTPSPort && !withTLS, taken != nil && taken.TLS != withTLS:
		faults = append(faults, fault{"Conflicted", string(gw.ListenerReasonProtocolConflict),
			fmt.Sprintf("port %d is served %s TLS", l.spec.Port, map[bool]string{true: "without", false: "with"}[withTLS])})
	}
	served := true
	for _, f := range faults {
		if f.reason != string(gw.ListenerReasonInvalidRouteKinds) || len(l.kinds) == 0 {
			served = false
		}
	}
	if served {
		host := ""
		if l.spec.Hostname != nil {
			host = string(*l.spec.Hostname)
		}
		p := b.port(number, withTLS, l.owner)
		addCertificates(p, host, certs)
		key := siteKey{number, host}
		if sites[key] == nil {
			sites[key] = &site{port: l.spec.Port}
		}
		l.site = sites[key]
	}
	l.setConditions(faults)
}

// portNumber returns the port to listen on for the port of a Gateway's listener.
func (b *builder) portNumber(port int32) uint16 {
	switch port {
	case 80:
		return b.cfg.HTTPPort
	case 443:
		return b.cfg.HTTPSPort
	}
	return uint16(port)
}

// addCertificates adds certificates for the listener's hostname or, if it has none, for the names in the certificates.
func addCertificates(p *Port, host string, certs []*tls.Certificate) {
	names := []string{host}
	if host == "" {
		for _, c := range certs {
			names = append(names, namesIn(c)...)
		}
	}
	for _, name := range names {
		if _, taken := p.Certificates.Get(name); !taken && len(certs) > 0 {
			p.Certificates.Set(name, certs)
		}
	}
}

// validate checks a listener, except for conflicts with other users of its port. It returns its certificates.
func (b *builder) validate(l *listener, refused string) (certs []*tls.Certificate, faults []fault) {
	no := func(condition string, reason gw.ListenerConditionReason, format string, args ...any) {
		faults = append(faults, fault{condition, string(reason), fmt.Sprintf(format, args...)})
	}
	if refused != "" {
		no("Accepted", "Invalid", "%s", refused)
	}
	switch l.spec.Protocol {
	case gw.HTTPProtocolType, gw.HTTPSProtocolType:
	default:
		no("Accepted", gw.ListenerReasonUnsupportedProtocol, "protocol %s is not supported: HTTP and HTTPS are", l.spec.Protocol)
	}
	if !l.allowKinds() {
		no("ResolvedRefs", gw.ListenerReasonInvalidRouteKinds, "of allowedRoutes.kinds only HTTPRoute and GRPCRoute are supported")
	}
	if l.spec.Protocol != gw.HTTPSProtocolType {
		return nil, faults
	}
	switch t := l.spec.TLS; {
	case t == nil || len(t.CertificateRefs) == 0:
		no("ResolvedRefs", gw.ListenerReasonInvalidCertificateRef, "an HTTPS listener needs tls.certificateRefs")
		return nil, faults
	case t.Mode != nil && *t.Mode != gw.TLSModeTerminate:
		no("Accepted", gw.ListenerReasonUnsupportedValue, "tls.mode %s is not supported: Terminate is", *t.Mode)
		return nil, faults
	}
	for _, ref := range l.spec.TLS.CertificateRefs {
		cert, f := b.listenerCertificate(l, ref)
		if f != nil {
			faults = append(faults, *f)
		}
		if cert != nil {
			certs = append(certs, cert)
		}
	}
	return certs, faults
}

func (b *builder) listenerCertificate(l *listener, ref gw.SecretObjectReference) (*tls.Certificate, *fault) {
	namespace := l.gateway.Namespace
	if ref.Namespace != nil {
		namespace = string(*ref.Namespace)
	}
	if ref.Group != nil && *ref.Group != "" || ref.Kind != nil && *ref.Kind != "Secret" {
		return nil, &fault{"ResolvedRefs", string(gw.ListenerReasonInvalidCertificateRef), "certificateRefs must name Secrets"}
	}
	if !b.granted(grant{"Gateway", l.gateway.Namespace, "", "Secret", namespace, string(ref.Name)}) {
		return nil, &fault{
			"ResolvedRefs", string(gw.ListenerReasonRefNotPermitted),
			fmt.Sprintf("no ReferenceGrant in namespace %s lets this Gateway use Secret %s", namespace, ref.Name),
		}
	}
	cert, err := b.certificate(namespace, string(ref.Name))
	if err != nil {
		if !errors.Is(err, ErrPending) {
			b.problem(l.owner, "Certificate", fmt.Sprintf("listener %s: Secret %s/%s: %v", l.spec.Name, namespace, ref.Name, err))
		}
		return nil, &fault{"ResolvedRefs", string(gw.ListenerReasonInvalidCertificateRef), fmt.Sprintf("Secret %s/%s: %v", namespace, ref.Name, err)}
	}
	return cert, nil
}

// allowKinds sets the kinds of routes that may attach. It reports whether all requested kinds are supported.
func (l *listener) allowKinds() bool {
	group := gw.Group(gw.GroupName)
	all := []gw.RouteGroupKind{{Group: &group, Kind: "HTTPRoute"}, {Group: &group, Kind: "GRPCRoute"}}
	if l.spec.AllowedRoutes == nil || len(l.spec.AllowedRoutes.Kinds) == 0 {
		l.kinds = all
		return true
	}
	ok := true
	for _, k := range l.spec.AllowedRoutes.Kinds {
		known := false
		for _, a := range all {
			if (k.Group == nil || *k.Group == group) && k.Kind == a.Kind {
				l.kinds, known = append(l.kinds, a), true
			}
		}
		ok = ok && known
	}
	return ok
}

// setConditions writes the listener's conditions.
func (l *listener) setConditions(faults []fault) {
	gen := l.gateway.Generation
	l.status = gw.ListenerStatus{Name: l.spec.Name, SupportedKinds: l.kinds}
	if l.status.SupportedKinds == nil {
		l.status.SupportedKinds = []gw.RouteGroupKind{}
	}
	find := func(kind string) *fault {
		for i := range faults {
			if faults[i].condition == kind {
				return &faults[i]
			}
		}
		return nil
	}
	if f := find("Conflicted"); f != nil {
		l.status.Conditions = append(l.status.Conditions, condition("Conflicted", "True", f.reason, f.message, gen))
		faults = append(faults, fault{"Accepted", string(gw.ListenerReasonPortUnavailable), f.message})
	} else {
		l.status.Conditions = append(l.status.Conditions, condition("Conflicted", "False", string(gw.ListenerReasonNoConflicts), "", gen))
	}
	for _, c := range []string{"Accepted", "ResolvedRefs"} {
		if f := find(c); f != nil {
			l.status.Conditions = append(l.status.Conditions, condition(c, "False", f.reason, f.message, gen))
		} else {
			l.status.Conditions = append(l.status.Conditions, condition(c, "True", c, "", gen)) // without a fault the reason has the name of the condition
		}
	}
	if l.site == nil {
		l.status.Conditions = append(l.status.Conditions, condition("Programmed", "False", string(gw.ListenerReasonInvalid), faults[0].message, gen))
	} else {
		l.status.Conditions = append(l.status.Conditions, condition("Programmed", "True", string(gw.ListenerReasonProgrammed), "", gen))
	}
}

// allows reports whether a route of this kind and namespace may attach.
func (b *builder) allows(l *listener, kind, namespace string) bool {
	known := false
	for _, k := range l.kinds {
		known = known || string(k.Kind) == kind
	}
	if !known {
		return false
	}
	from := gw.NamespacesFromSame
	var in *gw.RouteNamespaces
	if a := l.spec.AllowedRoutes; a != nil && a.Namespaces != nil {
		in = a.Namespaces
		if in.From != nil {
			from = *in.From
		}
	}
	switch from {
	case gw.NamespacesFromAll:
		return true
	case gw.NamespacesFromSame:
		return namespace == l.gateway.Namespace
	case gw.NamespacesFromSelector:
		if in.Selector == nil || b.o.NamespaceLabels == nil {
			return false
		}
		selector, err := metav1.LabelSelectorAsSelector(in.Selector)
		has, ok := b.o.NamespaceLabels(namespace)
		return err == nil && ok && selector.Matches(labels.Set(has))
	}
	return false
}

// grant is a reference from one namespace into another.
type grant struct{ fromKind, fromNamespace, toGroup, toKind, toNamespace, name string }

// granted reports whether a reference stays in its namespace or a ReferenceGrant where it leads allows it.
func (b *builder) granted(g grant) bool {
	if g.fromNamespace == g.toNamespace {
		return true
	}
	for _, rg := range b.o.Grants {
		if rg.Namespace != g.toNamespace {
			continue
		}
		from, to := false, false
		for _, f := range rg.Spec.From {
			from = from || f.Group == gw.GroupName && string(f.Kind) == g.fromKind && string(f.Namespace) == g.fromNamespace
		}
		for _, t := range rg.Spec.To {
			to = to || string(t.Group) == g.toGroup && string(t.Kind) == g.toKind && (t.Name == nil || string(*t.Name) == g.name)
		}
		if from && to {
			return true
		}
	}
	return false
}
