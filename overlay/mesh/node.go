package mesh

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Node is what a plan needs to know of a Node object. Two are equal when they lead to the same plan.
type Node struct {
	Name string
	// Address is its first InternalIP of IPv4, Pods its pod network; not valid as long as the node has none.
	Address netip.Addr
	Pods    netip.Prefix
	// Since is when the Node object was made, in seconds since 1970: of two that claim one network the first has it.
	Since int64
}

// NodeOf reads a Node object; what is missing or malformed is left out.
func NodeOf(node *v1.Node) Node {
	n := Node{Name: node.Name, Since: node.CreationTimestamp.Unix()}
	for _, a := range node.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err == nil && a.Type == v1.NodeInternalIP && ip.Unmap().Is4() {
			n.Address = ip.Unmap()
			break
		}
	}
	for _, text := range append(slices.Clip(node.Spec.PodCIDRs), node.Spec.PodCIDR) {
		if p, err := netip.ParsePrefix(text); err == nil && p.Addr().Is4() {
			n.Pods = p.Masked()
			break
		}
	}
	return n
}

func firstFirst(a, b Node) int {
	return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.Name, b.Name))
}

// claims remembers which node has which network.
type claims struct {
	owner map[netip.Prefix]string
	// below has, for every network around a claimed one, who claimed.
	below map[netip.Prefix]string
}

func newClaims() *claims {
	return &claims{owner: make(map[netip.Prefix]string), below: make(map[netip.Prefix]string)}
}

// claim takes the network, unless it overlaps one that is taken; then it returns whose.
func (c *claims) claim(p netip.Prefix, name string) (other string, ok bool) {
	if other, taken := c.below[p]; taken {
		return other, false
	}
	for bits := p.Bits(); bits >= 0; bits-- {
		if other, taken := c.owner[around(p, bits)]; taken {
			return other, false
		}
	}
	c.owner[p] = name
	for bits := p.Bits() - 1; bits >= 0; bits-- {
		if _, ok := c.below[around(p, bits)]; !ok {
			c.below[around(p, bits)] = name
		}
	}
	return "", true
}

// around is the network of so many bits that p lies in.
func around(p netip.Prefix, bits int) netip.Prefix {
	return netip.PrefixFrom(p.Addr(), bits).Masked()
}
