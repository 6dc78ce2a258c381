package speaker

import (
	"bytes"
	"crypto/sha256"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// Condition marks the Services whose addresses come from the cluster's own pools.
	Condition = "balsa.dev/PoolAddress"
	// LANsAnnotation of a Node lists the networks of its links, in CIDR form, separated by commas.
	LANsAnnotation = "balsa.dev/lans"
	// autoscalerTaint marks nodes that will be removed soon (k8s.io/autoscaler).
	autoscalerTaint = "ToBeDeletedByClusterAutoscaler"
)

// balancer is the part of a Service that matters for announcing.
type balancer struct {
	addresses []netip.Addr
	local     bool     // externalTrafficPolicy Local: only nodes with an endpoint may announce it
	at        []string // with local: the nodes with an endpoint
	holders   []string // the node of each address; nil until state.wanted chooses them
}

// balancerOf returns the addresses of a Service to announce; ok is false when there are none.
func balancerOf(svc *v1.Service) (b balancer, ok bool) {
	if svc == nil || svc.Spec.Type != v1.ServiceTypeLoadBalancer || svc.DeletionTimestamp != nil {
		return b, false
	}
	if !slices.ContainsFunc(svc.Status.Conditions, func(c metav1.Condition) bool { return c.Type == Condition }) {
		return b, false
	}
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if in.IPMode != nil && *in.IPMode != v1.LoadBalancerIPModeVIP {
			continue
		}
		if a, err := netip.ParseAddr(in.IP); err == nil && a.Zone() == "" {
			b.addresses = append(b.addresses, a.Unmap())
		}
	}
	b.local = svc.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal
	return b, len(b.addresses) > 0
}

// nodesOf returns the nodes with ready endpoints, or where no node has any, those whose endpoints terminate but still serve.
func nodesOf(list []*discovery.EndpointSlice) []string {
	var ready, leaving []string
	for _, s := range list {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			isReady := e.Conditions.Ready == nil || *e.Conditions.Ready
			switch {
			case e.NodeName == nil:
			case isReady:
				ready = append(ready, *e.NodeName)
			case e.Conditions.Serving != nil && *e.Conditions.Serving:
				leaving = append(leaving, *e.NodeName)
			}
		}
	}
	if len(ready) == 0 {
		ready = leaving
	}
	slices.Sort(ready)
	return slices.Compact(ready)
}

// nodeView is the part of a Node that matters for announcing.
type nodeView struct {
	name string
	able bool
	lans string // the value of LANsAnnotation
}

func nodeViewOf(n *v1.Node) nodeView {
	s := nodeView{name: n.Name, able: n.DeletionTimestamp == nil, lans: n.Annotations[LANsAnnotation]}
	ready := slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
	})
	_, excluded := n.Labels[v1.LabelNodeExcludeBalancers]
	leaving := slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == autoscalerTaint })
	s.able = s.able && ready && !excluded && !leaving
	return s
}

// candidates are the nodes that can announce addresses.
type candidates []candidate

type candidate struct {
	name string
	lans []netip.Prefix
}

func candidatesOf(stations []nodeView) candidates {
	var f candidates
	for _, s := range stations {
		if lans := parseLANs(s.lans); s.able && len(lans) > 0 {
			f = append(f, candidate{s.name, lans})
		}
	}
	return f
}

// parseLANs reads the annotation; parts that do not parse as a network are ignored.
func parseLANs(text string) []netip.Prefix {
	var out []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		if p, err := netip.ParsePrefix(part); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

func formatLANs(lans []netip.Prefix) string {
	out := make([]string, len(lans))
	for i, p := range lans {
		out[i] = p.String()
	}
	return strings.Join(out, ",")
}

// holder returns the node that announces one of the balancer's addresses; "" is no node. It depends on its arguments alone, and
// not on their order.
func (f candidates) holder(b balancer, address netip.Addr) string {
	var best string
	var most [sha256.Size]byte
	for _, c := range f {
		if !slices.ContainsFunc(c.lans, func(p netip.Prefix) bool { return p.Contains(address) }) {
			continue
		}
		if b.local {
			if _, there := slices.BinarySearch(b.at, c.name); !there {
				continue
			}
		}
		h := sha256.Sum256([]byte(address.String() + " " + c.name))
		if best == "" || bytes.Compare(h[:], most[:]) > 0 {
			best, most = c.name, h
		}
	}
	return best
}
