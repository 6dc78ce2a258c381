package plan

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/overlay/ingress/route"
)

// Annotations of an Ingress that have an effect.
const (
	// AnnotationForceHTTPS "true" answers requests without TLS with a redirect (308) to https.
	AnnotationForceHTTPS = "balsa.dev/force-https"
	// AnnotationBackendProtocol is http, https, h2c or grpc; without it, the Service port's appProtocol says.
	AnnotationBackendProtocol = "balsa.dev/backend-protocol"
	// AnnotationRewritePrefix replaces what a rule's path matched before the backend is asked.
	AnnotationRewritePrefix = "balsa.dev/rewrite-prefix"

	annotationClass = "kubernetes.io/ingress.class" // superseded by spec.ingressClassName, but still in use
)

// ingressOptions are the options that annotations set.
type ingressOptions struct {
	forceHTTPS bool
	protocol   Protocol // "": the Service port's appProtocol decides
	rewrite    *Rewrite
}

// ingresses adds the rules and certificates of all Ingresses of this controller's classes.
func (b *builder) ingresses() {
	ours := map[string]bool{}
	for _, c := range b.o.Classes {
		ours[c.Name] = c.Spec.Controller == IngressController
	}
	var rules []route.Rule[*Target]
	for _, in := range byAge(b.o.Ingresses) {
		class := in.Annotations[annotationClass]
		if in.Spec.IngressClassName != nil {
			class = *in.Spec.IngressClassName
		}
		if !ours[class] || in.DeletionTimestamp != nil {
			continue
		}
		b.plan.Ingresses = append(b.plan.Ingresses, in)
		owner := reference("networking.k8s.io/v1", "Ingress", in)
		b.port(b.cfg.HTTPPort, false, owner)
		b.ingressTLS(in, b.port(b.cfg.HTTPSPort, true, owner), owner)
		rules = append(rules, b.ingressRules(in, owner)...)
	}
	if len(b.plan.Ingresses) > 0 {
		table := route.New(route.OneLabel, rules)
		b.plan.Ports[b.cfg.HTTPPort].Ingress, b.plan.Ports[b.cfg.HTTPSPort].Ingress = table, table
	}
}

func (b *builder) ingressTLS(in *netv1.Ingress, port *Port, owner v1.ObjectReference) {
	for _, t := range in.Spec.TLS {
		if t.SecretName == "" {
			continue
		}
		cert, err := b.certificate(in.Namespace, t.SecretName)
		if err != nil {
			if !errors.Is(err, ErrPending) {
				b.problem(owner, "Certificate", fmt.Sprintf("Secret %s: %v; clients get a self-signed certificate meanwhile", t.SecretName, err))
			}
			continue
		}
		hosts := t.Hosts
		if len(hosts) == 0 {
			hosts = namesIn(cert)
		}
		for _, h := range hosts {
			if _, taken := port.Certificates.Get(h); !taken { // the oldest object wins a name
				port.Certificates.Set(h, []*tls.Certificate{cert})
			}
		}
	}
}

// namesIn returns the DNS names of a certificate.
func namesIn(cert *tls.Certificate) []string {
	if cert.Leaf == nil {
		return nil
	}
	return cert.Leaf.DNSNames
}

func (b *builder) options(in *netv1.Ingress, owner v1.ObjectReference) (o ingressOptions) {
	bad := func(name, want string) {
		b.problem(owner, "Annotation", fmt.Sprintf("%s: %q is not understood and has no effect; give %s", name, in.Annotations[name], want))
	}
	if v, ok := in.Annotations[AnnotationForceHTTPS]; ok {
		var err error
		if o.forceHTTPS, err = strconv.ParseBool(v); err != nil {
			bad(AnnotationForceHTTPS, "true or false")
		}
	}
	switch v := strings.ToLower(in.Annotations[AnnotationBackendProtocol]); v {
	case "":
	case "grpc", "h2c":
		o.protocol = H2C
	case "http", "https":
		o.protocol = Protocol(v)
	default:
		bad(AnnotationBackendProtocol, "http, https, h2c or grpc")
	}
	if v, ok := in.Annotations[AnnotationRewritePrefix]; ok {
		if strings.HasPrefix(v, "/") {
			o.rewrite = &Rewrite{Path: &PathChange{Prefix: true, Value: v}}
		} else {
			bad(AnnotationRewritePrefix, "a path that starts with /")
		}
	}
	return o
}

func (b *builder) ingressRules(in *netv1.Ingress, owner v1.ObjectReference) (rules []route.Rule[*Target]) {
	options := b.options(in, owner)
	add := func(host string, path route.Path, backend *netv1.IngressBackend, last bool) {
		rank := rankOf(in, len(rules))
		rank.Last = last
		rules = append(rules, route.Rule[*Target]{Host: host, Path: path, Rank: rank, Target: b.ingressTarget(in, backend, options, owner)})
	}
	hosts := map[string]bool{}
	for _, r := range in.Spec.Rules {
		hosts[r.Host] = true
		if r.HTTP == nil {
			continue
		}
		for i := range r.HTTP.Paths {
			p := &r.HTTP.Paths[i]
			path := route.Path{Kind: route.Prefix, Value: cmp.Or(p.Path, "/")} // ImplementationSpecific is treated as Prefix
			if p.PathType != nil && *p.PathType == netv1.PathTypeExact {
				path.Kind = route.Exact
			}
			add(r.Host, path, &p.Backend, false)
		}
	}
	if in.Spec.DefaultBackend == nil {
		return rules
	}
	if len(hosts) == 0 {
		hosts[""] = true
	}
	for host := range hosts {
		add(host, route.AnyPath, in.Spec.DefaultBackend, true)
	}
	return rules
}

func (b *builder) ingressTarget(in *netv1.Ingress, backend *netv1.IngressBackend, options ingressOptions, owner v1.ObjectReference) *Target {
	t := &Target{Owner: owner, ForceHTTPS: options.forceHTTPS, Rewrite: options.rewrite}
	w := Weighted{Weight: 1}
	if w.Backend, w.Broken = b.ingressBackend(in.Namespace, backend); w.Broken != "" {
		b.problem(owner, "Backend", w.Broken)
	} else {
		w.Backend.Protocol = cmp.Or(options.protocol, w.Backend.Protocol)
		b.addBackend(w.Backend)
	}
	t.Backends = []Weighted{w}
	return t
}

func (b *builder) ingressBackend(namespace string, backend *netv1.IngressBackend) (Backend, string) {
	if backend.Service == nil {
		return Backend{}, "a backend is no Service: resource backends are not served"
	}
	svc := b.service(namespace, backend.Service.Name)
	if svc == nil {
		return Backend{}, "there is no Service " + types.NamespacedName{Namespace: namespace, Name: backend.Service.Name}.String()
	}
	want := backend.Service.Port
	found, broken := backendOf(svc, func(p *v1.ServicePort) bool {
		return want.Name != "" && p.Name == want.Name || want.Name == "" && p.Port == want.Number
	})
	if broken != "" {
		broken = fmt.Sprintf("%s (asked for %s)", broken, cmp.Or(want.Name, strconv.Itoa(int(want.Number))))
	}
	return found, broken
}
