package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/labels"
)

// group selects pods by a label selector, in one namespace or in the namespaces that another selector matches. With the
// name of a port it selects the pods that have that port, with its number.
type group struct {
	namespace  string          // "": the selector namespaces applies
	namespaces labels.Selector // nil: namespace applies
	pods       labels.Selector
	protocol   Protocol // with port
	port       string
	local      bool // only pods of this node
}

// holders returns the group of pods that have a port of that name.
func holders(p port, local bool) group {
	return group{pods: labels.Everything(), protocol: p.protocol, port: p.name, local: local}
}

// key returns a text that names everything about the group; groups with equal keys are one.
func (g *group) key() string {
	namespaces := ""
	if g.namespaces != nil {
		namespaces = selectorText(g.namespaces)
	}
	return fmt.Sprintf("%q %q %q %d %q %t", g.namespace, namespaces, selectorText(g.pods), g.protocol, g.port, g.local)
}

// selectorText returns a text that tells selectors apart. Selector.String returns the same text for labels.Nothing and
// labels.Everything.
func selectorText(s labels.Selector) string {
	if _, selectable := s.Requirements(); !selectable {
		return "!"
	}
	return "=" + s.String()
}

// set returns the name of the group's set.
func (g *group) set() string {
	if g.port != "" {
		return digest("ports", g.key())
	}
	return digest("pods", g.key())
}

// matches reports whether a pod is in the group; space are the labels of its namespace, and known is false if the namespace
// is not known yet.
func (g *group) matches(p *Pod, space map[string]string, known bool) bool {
	if g.port != "" {
		return p.Local || !g.local
	}
	if g.namespaces == nil {
		return p.Namespace == g.namespace && g.pods.Matches(labels.Set(p.Labels))
	}
	return known && g.namespaces.Matches(labels.Set(space)) && g.pods.Matches(labels.Set(p.Labels))
}

// Element is one member of a set: an address, or with a protocol a port of it.
type Element struct {
	Address  netip.Addr
	Protocol Protocol
	Port     uint16
}

// elements returns the elements of the set that a pod of the group has for one of its addresses.
func (g *group) elements(p *Pod, a netip.Addr) []Element {
	if g.port == "" {
		return []Element{{Address: a}}
	}
	var list []Element
	for _, have := range p.Ports {
		if have.Name == g.port && have.Protocol == g.protocol {
			list = append(list, Element{a, have.Protocol, have.Number})
		}
	}
	return list
}

// members are the members of a group that is in use.
type members struct {
	group
	have map[Element]struct{}
	// pending are elements that the kernel's set lacks (true), or that it has and should not have (false).
	pending map[Element]bool
}

func (m *members) change(e Element, add bool) {
	if _, there := m.have[e]; there == add {
		return
	}
	if add {
		m.have[e] = struct{}{}
	} else {
		delete(m.have, e)
	}
	if _, undone := m.pending[e]; undone {
		delete(m.pending, e)
		return
	}
	m.pending[e] = add
}

// digest returns a name that the kernel accepts.
func digest(prefix, content string) string {
	sum := sha256.Sum256([]byte(content))
	return prefix + "-" + hex.EncodeToString(sum[:10])
}
