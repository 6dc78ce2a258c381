package authz

import (
	"encoding/json"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/balsahq/balsa/control/auth/listers"
)

// The controllers of classes that the nodes serve.
const (
	IngressController = "balsa.dev/ingress"
	GatewayController = "balsa.dev/gateway"
)

const gatewayGroup = "gateway.networking.k8s.io"

// entrances finds the Secrets with certificates of Ingresses and Gateways that nodes serve. Every node may serve them,
// so every node may read these Secrets.
type entrances struct {
	classes, ingresses, gatewayClasses, gateways, grants *listers.Indexer
}

func newEntrances(store *listers.Store) entrances {
	net := func(r string) schema.GroupResource {
		return schema.GroupResource{Group: networkingv1.GroupName, Resource: r}
	}
	gateway := func(r string) *listers.Indexer {
		return store.Fresh(schema.GroupResource{Group: gatewayGroup, Resource: r})
	}
	return entrances{
		classes: store.Kept(net("ingressclasses")), ingresses: store.Fresh(net("ingresses")),
		gatewayClasses: gateway("gatewayclasses"), gateways: gateway("gateways"), grants: gateway("referencegrants"),
	}
}

// secretRule allows Secrets that the node's pods refer to, and certificates.
func secretRule(n *Node, node string, a authorizer.Attributes) string {
	reason := readRelated(refSecret)(n, node, a)
	if reason == "" || a.GetSubresource() != "" || a.GetNamespace() == "" || a.GetName() == "" || !oneOf(a.GetVerb(), "get", "list", "watch") {
		return reason
	}
	if n.entrances.ofIngress(a.GetNamespace(), a.GetName()) || n.entrances.ofGateway(a.GetNamespace(), a.GetName()) || n.ofVolume(node, a.GetNamespace(), a.GetName()) {
		return ""
	}
	return reason
}

// ofIngress reports whether an Ingress that nodes serve refers to the Secret.
func (e *entrances) ofIngress(namespace, name string) (found bool) {
	err := e.ingresses.Each(namespace, func(obj runtime.Object) bool {
		in, ok := obj.(*networkingv1.Ingress)
		if !ok {
			return true
		}
		named := slices.ContainsFunc(in.Spec.TLS, func(t networkingv1.IngressTLS) bool { return t.SecretName == name })
		class := in.Annotations["kubernetes.io/ingress.class"]
		if in.Spec.IngressClassName != nil {
			class = *in.Spec.IngressClassName
		}
		found = named && class != "" && e.servedClass(class)
		return !found
	})
	return found && err == nil
}

func (e *entrances) servedClass(name string) bool {
	obj, ok, err := e.classes.GetByKey(name)
	class, is := obj.(*networkingv1.IngressClass)
	return ok && is && err == nil && class.Spec.Controller == IngressController
}

// The parts of the Gateway API's objects that are read here. The objects are stored as JSON.
type (
	storedGateway struct {
		Metadata struct{ Namespace string }
		Spec     struct {
			GatewayClassName string
			Listeners        []struct {
				TLS *struct{ CertificateRefs []storedReference }
			}
		}
	}
	storedReference struct{ Group, Kind, Namespace, Name *string }
	storedClass     struct {
		Metadata struct{ Name string }
		Spec     struct{ ControllerName string }
	}
	storedGrant struct {
		Spec struct {
			From []struct{ Group, Kind, Namespace string }
			To   []struct {
				Group, Kind string
				Name        *string
			}
		}
	}
)

// each calls fn with the decoded objects of a kind. It skips objects that cannot be decoded: they allow nothing.
func each[T any](i *listers.Indexer, namespace string, fn func(*T) bool) {
	i.EachVersion(namespace, func(_ string, value []byte, _ int64) bool {
		o := new(T)
		return json.Unmarshal(value, o) != nil || fn(o)
	})
}

// ofGateway reports whether a Gateway that nodes serve refers to the Secret, from its own namespace or with a
// ReferenceGrant.
func (e *entrances) ofGateway(namespace, name string) (found bool) {
	each(e.gateways, "", func(g *storedGateway) bool {
		for _, l := range g.Spec.Listeners {
			if l.TLS == nil {
				continue
			}
			for _, ref := range l.TLS.CertificateRefs {
				in := g.Metadata.Namespace
				if ref.Namespace != nil {
					in = *ref.Namespace
				}
				if ref.Name == nil || *ref.Name != name || in != namespace || ref.Kind != nil && *ref.Kind != "Secret" || ref.Group != nil && *ref.Group != "" {
					continue
				}
				found = found || e.servedGatewayClass(g.Spec.GatewayClassName) && (in == g.Metadata.Namespace || e.granted(g.Metadata.Namespace, namespace, name))
			}
		}
		return !found
	})
	return found
}

func (e *entrances) servedGatewayClass(name string) (served bool) {
	each(e.gatewayClasses, "", func(c *storedClass) bool {
		served = c.Metadata.Name == name && c.Spec.ControllerName == GatewayController
		return !served
	})
	return served
}

func (e *entrances) granted(from, to, name string) (granted bool) {
	each(e.grants, to, func(g *storedGrant) bool {
		allows, reaches := false, false
		for _, f := range g.Spec.From {
			allows = allows || f.Group == gatewayGroup && f.Kind == "Gateway" && f.Namespace == from
		}
		for _, t := range g.Spec.To {
			reaches = reaches || t.Group == "" && t.Kind == "Secret" && (t.Name == nil || *t.Name == name)
		}
		granted = allows && reaches
		return !granted
	})
	return granted
}
