package admission

import (
	"context"
	"errors"
	"net"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
)

func TestANodeClaimsNothingOfOthers(t *testing.T) {
	p := nodeClaims{admission.NewHandler(admission.Create, admission.Update), nodeidentifier.NewDefaultNodeIdentifier(), func(node string, ips []net.IP) error {
		for _, ip := range ips {
			if ip.String() == "192.0.2.7" {
				return errors.New("another's")
			}
		}
		return nil
	}}
	node := func(cidr string, ips ...string) *api.Node {
		n := &api.Node{}
		if n.Name = "n"; cidr != "" {
			n.Spec.PodCIDRs = []string{cidr}
		}
		for _, ip := range ips {
			n.Status.Addresses = append(n.Status.Addresses, api.NodeAddress{Type: api.NodeInternalIP, Address: ip})
		}
		return n
	}
	itself := &user.DefaultInfo{Name: "system:node:n", Groups: []string{"system:nodes"}}
	ranges := &user.DefaultInfo{Name: "system:serviceaccount:kube-system:node-controller"}
	for what, c := range map[string]struct {
		who         user.Info
		before, now *api.Node
		may         bool
	}{
		"its own address":              {itself, node("", "192.0.2.8"), node("", "192.0.2.8", "192.0.2.9"), true},
		"another's address":            {itself, node("", "192.0.2.8"), node("", "192.0.2.7"), false},
		"one that it has had":          {itself, node("", "192.0.2.7"), node("", "192.0.2.7"), true},
		"a pod network":                {itself, node(""), node("10.244.0.0/24"), false},
		"another pod network":          {itself, node("10.244.1.0/24"), node("10.244.0.0/24"), false},
		"a pod network at first":       {itself, nil, node("10.244.0.0/24"), false},
		"another's address at first":   {itself, nil, node("", "192.0.2.7"), false},
		"the cluster gives a network":  {ranges, node(""), node("10.244.0.0/24"), true},
		"the same pod network as ever": {itself, node("10.244.1.0/24"), node("10.244.1.0/24", "192.0.2.8"), true},
	} {
		attributes := admission.NewAttributesRecord(c.now, nil, schema.GroupVersionKind{}, "", "n", schema.GroupVersionResource{Resource: "nodes"}, "", admission.Update, nil, false, c.who)
		if c.before != nil {
			attributes = admission.NewAttributesRecord(c.now, c.before, schema.GroupVersionKind{}, "", "n", schema.GroupVersionResource{Resource: "nodes"}, "", admission.Update, nil, false, c.who)
		}
		if err := p.Validate(context.Background(), attributes, nil); (err == nil) != c.may {
			t.Errorf("%s: %v", what, err)
		}
	}
}
