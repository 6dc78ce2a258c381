package authz_test

import (
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"

	"github.com/balsahq/balsa/control/auth/authz"
	"github.com/balsahq/balsa/raftstore"
)

func put(key, json string) raftstore.Op {
	return raftstore.Op{Type: raftstore.OpPut, Key: "/registry/" + key, Value: []byte(json)}
}

func TestNodesReadTheCertificatesTheyShow(t *testing.T) {
	c := newCluster(t)
	ingress := func(name, class, secret string) raftstore.Op {
		in := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}, Spec: networkingv1.IngressSpec{TLS: []networkingv1.IngressTLS{{SecretName: secret}}}}
		if class != "" {
			in.Spec.IngressClassName = &class
		}
		return op(t, "ingress/n/"+name, in, "networking.k8s.io/v1", "Ingress")
	}
	class := func(name, controller string) raftstore.Op {
		o := &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.IngressClassSpec{Controller: controller}}
		return op(t, "ingressclasses/"+name, o, "networking.k8s.io/v1", "IngressClass")
	}
	const group = "gateway.networking.k8s.io/"
	c.write(t,
		class("balsa", authz.IngressController), class("other", "example.com/other"),
		ingress("one", "balsa", "shown"), ingress("two", "other", "others"), ingress("three", "", "nobodys"),
		put(group+"gatewayclasses/balsa", `{"metadata":{"name":"balsa"},"spec":{"controllerName":"balsa.dev/gateway"}}`),
		put(group+"gatewayclasses/other", `{"metadata":{"name":"other"},"spec":{"controllerName":"example.com/other"}}`),
		put(group+"gateways/n/one", `{"metadata":{"namespace":"n","name":"one"},"spec":{"gatewayClassName":"balsa","listeners":[{"name":"plain"},
			{"tls":{"certificateRefs":[{"name":"gate"},{"kind":"ConfigMap","name":"map"},{"namespace":"m","name":"granted"},{"namespace":"m","name":"refused"}]}}]}}`),
		put(group+"gateways/n/two", `{"metadata":{"namespace":"n","name":"two"},"spec":{"gatewayClassName":"other","listeners":[{"tls":{"certificateRefs":[{"name":"foreign"}]}}]}}`),
		put(group+"referencegrants/m/g", `{"spec":{"from":[{"group":"gateway.networking.k8s.io","kind":"Gateway","namespace":"n"}],"to":[{"group":"","kind":"Secret","name":"granted"}]}}`),
		put(group+"gateways/n/broken", `{`),
	)
	node := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes", user.AllAuthenticated}}
	jane := &user.DefaultInfo{Name: "jane", Groups: []string{user.AllAuthenticated}}
	for _, tc := range []struct {
		who                   user.Info
		verb, namespace, name string
		want                  bool
	}{
		{node, "get", "n", "shown", true}, {node, "list", "n", "shown", true}, {node, "watch", "n", "shown", true},
		{node, "update", "n", "shown", false}, {node, "delete", "n", "shown", false}, {jane, "get", "n", "shown", false},
		{node, "get", "m", "shown", false}, {node, "list", "n", "", false}, {node, "list", "", "", false},
		{node, "get", "n", "others", false}, {node, "get", "n", "nobodys", false}, {node, "get", "n", "any", false},
		{node, "get", "n", "gate", true}, {node, "get", "n", "map", false}, {node, "get", "m", "granted", true},
		{node, "get", "m", "refused", false}, {node, "get", "n", "foreign", false}, {node, "get", "n", "granted", false},
	} {
		if got := c.may(t, ask(tc.who, tc.verb, "secrets", tc.namespace, tc.name)); got != tc.want {
			t.Errorf("%s may %s secret %s/%s: %v", tc.who.GetName(), tc.verb, tc.namespace, tc.name, got)
		}
	}
	list := ask(node, "list", "ingresses", "", "")
	if list.APIGroup = "networking.k8s.io"; !c.may(t, list) {
		t.Error("nodes may not list Ingresses")
	}
	status := ask(node, "update", "ingresses", "n", "one")
	if status.APIGroup, status.Subresource = "networking.k8s.io", "status"; c.may(t, status) {
		t.Error("nodes may write the status of Ingresses")
	}
	c.write(t, ingress("one", "balsa", "another"))
	if c.may(t, ask(node, "get", "secrets", "n", "shown")) || !c.may(t, ask(node, "get", "secrets", "n", "another")) {
		t.Error("a change of the Ingress does not count at once")
	}
}
