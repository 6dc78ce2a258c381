package routes

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Node is the part of a Node object that a plan depends on. Equal Nodes lead to the same plan.
type Node struct {
	Name string
	// Address and Address6 are the node's first InternalIP of each family, Pods and Pods6 its pod networks; not valid as long
	// as it has none.
	Address, Address6 netip.Addr
	Pods, Pods6       netip.Prefix
	// Key is the WireGuard public key that the node has published; zero: none, the node does not encrypt.
	Key Key
	// Since is when the Node object was made, in seconds since 1970: of two nodes that claim one network or address the older
	// has it.
	Since int64
}

// NodeOf reads a Node object; missing and malformed fields are left out.
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

// address returns the node's address of a family; not valid: none.
func (n *Node) address(v4 bool) netip.Addr {
	if v4 {
		return n.Address
	}
	return n.Address6
}

func oldestFirst(a, b Node) int {
	return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.Name, b.Name))
}

// claims remember which node has which network, address and key.
type claims struct {
	owner map[netip.Prefix]string
	sizes [2][129]bool // by family, which lengths of prefixes are among them; commonly one
	at    map[netip.Addr]string
	keys  map[Key]string
}

func newClaims() *claims {
	return &claims{owner: make(map[netip.Prefix]string), at: make(map[netip.Addr]string), keys: make(map[Key]string)}
}

// claim gives the network to the node, unless it overlaps one of another node, whose name it then returns.
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

// inside returns the owner of a smaller network within p, of several the one with the lowest address.
func (c *claims) inside(p netip.Prefix) (name string, found bool) {
	var lowest netip.Prefix
	for q, owner := range c.owner {
		if p.Contains(q.Addr()) && (!found || q.Addr().Less(lowest.Addr())) {
			lowest, name, found = q, owner, true
		}
	}
	return name, found
}

// claimAddress gives the address to the node, unless another node has it, whose name it then returns.
func (c *claims) claimAddress(a netip.Addr, name string) (other string, ok bool) {
	if other, taken := c.at[a]; taken {
		return other, false
	}
	c.at[a] = name
	return "", true
}
