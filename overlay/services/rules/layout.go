package rules

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"

	"github.com/balsahq/balsa/overlay/nft"
	"github.com/balsahq/balsa/overlay/services"
)

// clientsLimit bounds the clients of all services that are remembered for session affinity (some 30 MB). Past it, a new
// client is still led to a backend, and may be led to another one the next time.
const clientsLimit = 1 << 17

// Names of the sets and maps.
const (
	servicesMap     = "services"      // address, protocol, port ─► way
	outsideMap      = "outside"       // the same, for clients outside
	portsMap        = "node-ports"    // protocol, port ─► way
	outsidePortsMap = "outside-ports" // the same, for clients outside
	groupsOf        = "-groups"       // behind each of these names: the same ─► group
	waysMap         = "ways"          // way ─► its chain
	outsideWaysMap  = "outside-ways"  // the same for clients outside: the kernel would see a loop in one map
	guardsMap       = "guards"        // address, protocol, port ─► chain that drops clients outside the allowed networks
	backendsMap     = "backends"      // group, number ─► address, port
	idsMap          = "ids"           // group, number ─► a backend's id, where clients stay with theirs
	clientsMap      = "clients"       // client, group ─► id
	stayMap         = "stay"          // group, id ─► address, port
	refusedSet      = "refused"       // address, protocol, port
	droppedSet      = "dropped"
	refusedPortsSet = "refused-ports" // protocol, port
	droppedPortsSet = "dropped-ports"
	hairpinSet      = "hairpin" // an address of a pod, twice
	membersSet      = "members"
	sources4Set     = "tunnel-sources"  // a member's address, IPv4 network of packets inside the tunnel
	sources6Set     = "tunnel-sources6" // a member's address, IPv6 network of packets inside the tunnel
)

// leads are the maps from a destination to its way; with groupsOf behind the name, to its group.
var leads = map[services.Where]string{
	services.AtAddress: servicesMap, services.AtPort: portsMap, services.AtAddressOutside: outsideMap, services.AtPortOutside: outsidePortsMap,
}

// layout builds the sets, chains and elements of one family's table.
type layout struct {
	cfg    Config
	family nft.Family
	table  *nft.Table
}

func newLayout(cfg Config) *layout {
	l := &layout{cfg: cfg, family: nft.IPv6}
	if cfg.V4 {
		l.family = nft.IPv4
	}
	l.table = &nft.Table{Family: l.family, Name: Name, Sets: newSets(l.family), Chains: l.baseChains()}
	return l
}

// fingerprint returns the name of the chain that marks a table as built from this configuration.
func (l *layout) fingerprint() string {
	return nft.Fingerprint(fmt.Appendf(nil, "%d %+v", layoutVersion, l.cfg))
}

// newSets returns all sets and maps.
func newSets(f nft.Family) []nft.Set {
	ip, mark, port := f.AddressType(), nftables.TypeMark, nftables.TypeInetService
	join := nftables.MustConcatSetType
	at, atPort := join(ip, nftables.TypeInetProto, port), join(nftables.TypeInetProto, port)
	pair, value, backend := join(mark, mark), join(mark, mark, mark), join(ip, port)
	sets := []nft.Set{
		{Name: waysMap, Flags: nft.Map, Key: pair, Data: nftables.TypeVerdict},
		{Name: outsideWaysMap, Flags: nft.Map, Key: pair, Data: nftables.TypeVerdict},
		{Name: guardsMap, Flags: nft.Map, Key: at, Data: nftables.TypeVerdict},
		{Name: backendsMap, Flags: nft.Map, Key: join(mark, mark, mark), Data: backend},
		{Name: idsMap, Flags: nft.Map, Key: join(mark, mark, mark), Data: pair},
		{Name: stayMap, Flags: nft.Map, Key: join(mark, mark, mark, mark), Data: backend},
		{Name: clientsMap, Flags: nft.Map | nft.Timeout | nft.Dynamic, Key: join(ip, mark, mark), Data: value, Limit: clientsLimit},
		{Name: refusedSet, Key: at}, {Name: droppedSet, Key: at}, {Name: refusedPortsSet, Key: atPort}, {Name: droppedPortsSet, Key: atPort},
		{Name: hairpinSet, Key: join(ip, ip)}, {Name: membersSet, Key: ip},
		sourcesIn(sources4Set, ip, nftables.TypeIPAddr), sourcesIn(sources6Set, ip, nftables.TypeIP6Addr),
	}
	for _, m := range []nft.Set{
		{Name: servicesMap, Key: at}, {Name: outsideMap, Key: at}, {Name: portsMap, Key: atPort}, {Name: outsidePortsMap, Key: atPort},
	} {
		m.Flags, m.Data = nft.Map, value
		groups := m
		groups.Name += groupsOf
		sets = append(sets, m, groups)
	}
	return sets
}

func sourcesIn(name string, member, inner nftables.SetDatatype) nft.Set {
	return nft.Set{Name: name, Flags: nft.Interval | nft.Concat, Key: nftables.MustConcatSetType(member, inner), Parts: []uint32{member.Bytes, inner.Bytes}}
}

// The functions below append a key or a value to bytes. They are laid out as the kernel does concatenations: every part is
// padded to four bytes.

func portKey(to []byte, p services.NodePort) []byte {
	return binary.BigEndian.AppendUint32(append(to, byte(p.Protocol), 0, 0, 0), uint32(p.Port)<<16)
}

func addressKey(to []byte, a services.Address) []byte {
	return portKey(appendAddr(to, a.IP), services.NodePort{Protocol: a.Protocol, Port: a.Port})
}

func appendAddr(to []byte, a netip.Addr) []byte {
	if a.Is4() {
		b := a.As4()
		return append(to, b[:]...)
	}
	b := a.As16()
	return append(to, b[:]...)
}

// unused appends a word of zeros that is not used. A group, a way and a backend's id are two words; as the value of a map
// they have such a word in front: see pairWord.
func unused(to []byte) []byte { return append(to, 0, 0, 0, 0) }

func groupKey(to []byte, id services.GroupID) []byte {
	return binary.BigEndian.AppendUint64(to, uint64(id))
}

func numberedKey(to []byte, id services.GroupID, number int) []byte {
	return binary.NativeEndian.AppendUint32(groupKey(to, id), uint32(number))
}

// backendID appends the digest that tells a backend from the others of its group.
func backendID(to []byte, b netip.AddrPort) []byte {
	sum := sha256.Sum256(backendValue(nil, b))
	return append(to, sum[:8]...)
}

func stayKey(to []byte, id services.GroupID, b netip.AddrPort) []byte {
	return backendID(groupKey(to, id), b)
}

func backendValue(to []byte, b netip.AddrPort) []byte {
	return binary.BigEndian.AppendUint32(appendAddr(to, b.Addr()), uint32(b.Port())<<16)
}

// wayKey appends the number of backends, and a word with everything else about the way.
func wayKey(to []byte, w services.Way) []byte {
	how := uint32(w.Where) | uint32(w.Source)<<4 | w.Sticky<<8
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(to, w.Backends), how)
}

// sourceElement is the element of a source, in sources4Set or sources6Set.
func sourceElement(s services.TunnelSource) nft.Element {
	first, last := s.Network.Masked().Addr(), s.Network.Masked().Addr().AsSlice()
	for i := s.Network.Bits(); i < first.BitLen(); i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	return nft.Element{Key: appendAddr(appendAddr(nil, s.Member), first), Last: append(appendAddr(nil, s.Member), last...)}
}

// parseSource reads an element that sourceElement made; ok is false for any other.
func parseSource(e *nft.Element, inner int) (s services.TunnelSource, ok bool) {
	if len(e.Last) != len(e.Key) {
		return s, false
	}
	at := len(e.Key) - inner
	member, _ := netip.AddrFromSlice(e.Key[:at])
	first, _ := netip.AddrFromSlice(e.Key[at:])
	bits := 8 * inner
	for bits > 0 && e.Last[at+(bits-1)/8]&(0x80>>((bits-1)%8)) != 0 && e.Key[at+(bits-1)/8]&(0x80>>((bits-1)%8)) == 0 {
		bits--
	}
	s = services.TunnelSource{Member: member, Network: netip.PrefixFrom(first, bits)}
	made := sourceElement(s)
	return s, bytes.Equal(made.Key, e.Key) && bytes.Equal(made.Last, e.Last)
}

func hairpinKey(to []byte, a netip.Addr) []byte { return appendAddr(appendAddr(to, a), a) }

func parsePort(key []byte) services.NodePort {
	return services.NodePort{Protocol: services.Protocol(key[0]), Port: binary.BigEndian.Uint16(key[4:])}
}

func parseAddress(key []byte) services.Address {
	ip, _ := netip.AddrFromSlice(key[:len(key)-8])
	port := parsePort(key[len(key)-8:])
	return services.Address{IP: ip, Protocol: port.Protocol, Port: port.Port}
}

func parseBackend(value []byte) netip.AddrPort {
	ip, _ := netip.AddrFromSlice(value[:len(value)-4])
	return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(value[len(value)-4:]))
}

func parseWay(b []byte) services.Way {
	how := binary.BigEndian.Uint32(b[4:])
	return services.Way{
		Backends: binary.BigEndian.Uint32(b), Where: services.Where(how & 0xf), Source: services.Source(how >> 4 & 0xf), Sticky: how >> 8,
	}
}

func parseGroup(b []byte) services.GroupID { return services.GroupID(binary.BigEndian.Uint64(b)) }
