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
	sizes [33]bool // which lengths of prefixes are among them; commonly one
}

func newClaims() *claims { return &claims{owner: make(map[netip.Prefix]string)} }

// claim takes the network, unless it overlaps one that is taken; then it returns whose.
func (c *claims) claim(p netip.Prefix, name string) (other string, ok bool) {
	for bits := p.Bits(); bits >= 0; bits-- {
		if c.sizes[bits] {
			if other, taken := c.owner[netip.PrefixFrom(p.Addr(), bits).Masked()]; taken {
				return other, false
			}
		}
	}
	if slices.Contains(c.sizes[p.Bits()+1:], true) {
		if other, taken := c.inside(p); taken {
			return other, false
		}
	}
	c.owner[p], c.sizes[p.Bits()] = name, true
	return "", true
}

// inside finds a smaller network within p that is taken, of several the one with the lowest address.
func (c *claims) inside(p netip.Prefix) (name string, found bool) {
	var lowest netip.Prefix
	for q, owner := range c.owner {
		if p.Contains(q.Addr()) && (!found || q.Addr().Less(lowest.Addr())) {
			lowest, name, found = q, owner, true
		}
	}
	return name, found
}
