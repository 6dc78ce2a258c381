package services

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
)

// Address is the destination of a packet.
type Address struct {
	IP       netip.Addr
	Protocol Protocol
	Port     uint16
}

func (a Address) String() string {
	return fmt.Sprintf("%s %s", netip.AddrPortFrom(a.IP, a.Port), a.Protocol)
}

// NodePort is a port that is open on every address of the node.
type NodePort struct {
	Protocol Protocol
	Port     uint16
}

func (p NodePort) String() string { return fmt.Sprintf("node port %d %s", p.Port, p.Protocol) }

// GroupID names a list of backends. It is a digest of their owner's name, of 63 bits.
type GroupID uint64

// Group is a list of backends, numbered from 0 without a gap.
type Group struct {
	Backends []netip.AddrPort
	// Sticky: clients stay with their backend, so the kernel must be able to tell whether the group still has it.
	Sticky bool
}

func (g Group) exists() bool { return len(g.Backends) > 0 }

// Where says in which map of the kernel a destination has its Lead.
type Where uint8

// The maps: by address, by port of the node, and for clients from outside the same again.
const (
	AtAddress Where = iota
	AtPort
	AtAddressOutside
	AtPortOutside
)

// Source says which address a backend sees as the client's.
type Source uint8

// Sources. Inside are the pods of the cluster.
const (
	Keep        Source = iota // the client's
	HideAll                   // this node's, because the answer must come back through it
	HideOutside               // this node's if the client is not inside
	HideNode                  // this node's if the client is this node, whose address may be its loopback
	// Apart is HideNode for pods and this node; for other clients Target.Outside applies.
	Apart
)

// Way is how a backend is chosen. There are few ways, because they do not name the backends, which are in the maps. So services
// with equally many backends share their rules, and a change of backends changes no rule.
type Way struct {
	Where    Where
	Source   Source
	Backends uint32 // how many
	Sticky   uint32 // seconds a client stays with its backend; 0: not at all
}

// Lead is where packets are led: to a backend of a group, in a way. The zero Lead has no backends.
type Lead struct {
	Group GroupID
	Way   Way
}

// HasBackends tells whether there are backends.
func (l Lead) HasBackends() bool { return l.Way.Backends > 0 }

// Refusal is what happens to a packet for which there is no backend.
type Refusal uint8

// Refusals: the packet is rejected, or dropped where a policy forbids to send it elsewhere.
const (
	NoRefusal Refusal = iota
	Reject
	Drop
)

// Target is what happens to packets to one address or port; the zero Target does nothing.
type Target struct {
	Lead Lead
	// Outside is for clients outside if Lead.Way.Source is Apart; without backends their packets are dropped.
	Outside Lead
	Refusal Refusal
	// Guard names the networks from which clients must come; "": any.
	Guard string
}

// Counted are keys with the number of their users.
type Counted[K comparable] map[K]int

// Table is everything that the kernel has to know about services.
type Table struct {
	Services map[Address]Target
	Ports    map[NodePort]Target
	Groups   map[GroupID]Group
	Ways     Counted[Way]
	Guards   map[string][]netip.Prefix
	// Hairpin are the pods of this node that may be sent to themselves.
	Hairpin Counted[netip.Addr]
	// Members are the other nodes; only they may send to the tunnel's port.
	Members Counted[netip.Addr]
	// Sources are the packets that each member may send through the tunnel.
	Sources Counted[TunnelSource]
}

// TunnelSource is a network of which a member may send packets through the tunnel.
type TunnelSource struct {
	Member  netip.Addr
	Network netip.Prefix // of either family
}

// NewTable returns an empty table.
func NewTable() *Table {
	return &Table{
		Services: make(map[Address]Target), Ports: make(map[NodePort]Target), Groups: make(map[GroupID]Group),
		Ways: make(Counted[Way]), Guards: make(map[string][]netip.Prefix), Hairpin: make(Counted[netip.Addr]),
		Members: make(Counted[netip.Addr]), Sources: make(Counted[TunnelSource]),
	}
}

// reach returns every backend to which a target can lead.
func (t *Table) reach(x Target) []netip.AddrPort {
	all := t.Groups[x.Lead.Group].Backends
	if x.Outside.HasBackends() {
		all = append(all[:len(all):len(all)], t.Groups[x.Outside.Group].Backends...)
	}
	return all
}

func groupID(owner, which string) GroupID {
	sum := sha256.Sum256([]byte(owner + " " + which))
	return GroupID(binary.BigEndian.Uint64(sum[:]) >> 1)
}

// guardName names a guard by its content.
func guardName(sources []netip.Prefix) string {
	sum := sha256.Sum256([]byte(fmt.Sprint(sources)))
	return "from-" + hex.EncodeToString(sum[:10])
}
