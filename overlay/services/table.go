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
	// Sticky: clients stay with their backend, so the kernel needs the set of the group's backends to check that theirs
	// still exists.
	Sticky bool
}

func (g Group) exists() bool { return len(g.Backends) > 0 }

// Where is the kernel map that holds the Lead of a destination.
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
	Keep        Source = iota // the client's address
	HideAll                   // this node's address, because the answer must come back through it
	HideOutside               // this node's address if the client is not Inside
	HideNode                  // this node's address if the client is this node, whose address may be its loopback
	// Apart is HideNode for pods and this node; for other clients Target.Outside applies.
	Apart
)

// Way is a method to choose a backend; each way is a chain of rules in the kernel. A way does not name the backends, which
// are in maps. So Services with the same number of backends share a way, and a change of backends changes no rule.
type Way struct {
	Where    Where
	Source   Source
	Backends uint32 // how many
	Sticky   uint32 // seconds that a client stays with its backend; 0: no affinity
}

// Lead says how packets are sent to a backend: the group of backends, and the way to choose one. The zero Lead has no
// backends.
type Lead struct {
	Group GroupID
	Way   Way
}

// HasBackends tells whether there are backends.
func (l Lead) HasBackends() bool { return l.Way.Backends > 0 }

// Refusal says how a packet without a backend is refused.
type Refusal uint8

// Refusals: the packet is rejected, or dropped where a policy forbids to send it elsewhere.
const (
	NoRefusal Refusal = iota
	Reject
	Drop
)

// Target says what happens to packets for one address or port; with the zero Target they are not changed.
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

// Table is everything that the kernel holds about Services.
type Table struct {
	Services map[Address]Target
	Ports    map[NodePort]Target
	Groups   map[GroupID]Group
	Ways     Counted[Way]
	Guards   map[string][]netip.Prefix
	// Hairpin are the pods of this node to which a Service may send their own packets.
	Hairpin Counted[netip.Addr]
	// Members are the other nodes; only they may send to the tunnel's port.
	Members Counted[netip.Addr]
	// Sources are the packets that each member may send through the tunnel.
	Sources Counted[TunnelSource]
}

// TunnelSource is a source network that a member may use for packets inside the tunnel.
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

// reach returns all backends of a target.
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

// guardName returns the name of a guard's chain, a digest of its networks.
func guardName(sources []netip.Prefix) string {
	sum := sha256.Sum256([]byte(fmt.Sprint(sources)))
	return "from-" + hex.EncodeToString(sum[:10])
}
