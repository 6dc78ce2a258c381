package routes

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Node is what a plan needs to know of a Node object. Two are equal when they lead to the same plan.
type Node struct {
	Name string
	// Address and Address6 are its first InternalIP of each family, Pods and Pods6 its pod networks; not valid as long as
	// the node has none.
	Address, Address6 netip.Addr
	Pods, Pods6       netip.Prefix
	// Key is the public key of WireGuard that the node has published; zero: none, it does not encrypt.
	Key Key
	// Since is when the Node object was made, in seconds since 1970: of two that claim one network or one address the
	// first has it.
	Since int64
}

// NodeOf reads a Node object; what is missing or malformed is left out.
func NodeOf(node *v1.Node) Node {
	n := Node{Name: node.Name, Key: ParseKey(node.Annotations[KeyAnnotation]), Since: node.CreationTimestamp.Unix()}
	for _, a := range node.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err != nil || a.Type != v1.NodeInternalIP {
			continue
		}
		switch ip = ip.Unmap(); {
		case ip.Is4() && !n.Address.IsValid():
			n.Address = ip
		case ip.Is6() && ip.Zone() == "" && !ip.IsLinkLocalUnicast() && !n.Address6.IsValid():
			n.Address6 = ip
		}
	}
	for _, text := range append(slices.Clip(node.Spec.PodCIDRs), node.Spec.PodCIDR) {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
		case p.Addr().Is4() && !n.Pods.IsValid():
			n.Pods = p.Masked()
		case p.Addr().Is6() && !p.Addr().Is4In6() && !n.Pods6.IsValid():
			n.Pods6 = p.Masked()
		}
	}
	return n
}

// address is the node's address of a family; not valid: none.
func (n *Node) address(v4 bool) netip.Addr {
	if v4 {
		return n.Address
	}
	return n.Address6
}

func firstFirst(a, b Node) int {
	return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.Name, b.Name))
}

// claims remembers which node has which network and which address.
type claims struct {
	owner map[netip.Prefix]string
	sizes [2][129]bool // by family, which lengths of prefixes are among them; commonly one
	at    map[netip.Addr]string
	keys  map[Key]string
}

func newClaims() *claims {
	return &claims{owner: make(map[netip.Prefix]string), at: make(map[netip.Addr]string), keys: make(map[Key]string)}
}

// claim takes the network, unless it overlaps one that is taken; then it returns whose.
func (c *claims) claim(p netip.Prefix, name string) (other string, ok bool) {
	sizes := &c.sizes[0]
	if p.Addr().Is6() {
		sizes = &c.sizes[1]
	}
	for bits := p.Bits(); bits >= 0; bits-- {
		if sizes[bits] {
			if other, taken := c.owner[netip.PrefixFrom(p.Addr(), bits).Masked()]; taken {
				return other, false
			}
		}
	}
	if slices.Contains(sizes[p.Bits()+1:], true) {
		if other, taken := c.inside(p); taken {
			return other, false
		}
	}
	c.owner[p], sizes[p.Bits()] = name, true
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

// claimAddress takes the address, unless another node has it; then it returns which.
func (c *claims) claimAddress(a netip.Addr, name string) (other string, ok bool) {
	if other, taken := c.at[a]; taken {
		return other, false
	}
	c.at[a] = name
	return "", true
}
