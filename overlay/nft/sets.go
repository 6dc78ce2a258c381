package nft

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/services"
)

// clientsLimit bounds the clients of all services that are remembered for session affinity (some 30 MB). Past it, new
// clients are led to a backend all the same, but not remembered.
const clientsLimit = 1 << 17

// Names of the sets and maps.
const (
	servicesMap     = "services"      // address, protocol, port ─► way
	outsideMap      = "outside"       // the same, for clients outside
	portsMap        = "node-ports"    // protocol, port ─► way
	outsidePortsMap = "outside-ports" // the same, for clients outside
	groupsOf        = "-groups"       // behind each of these names: the same ─► group
	waysMap         = "ways"          // way ─► its chain
	outsideWaysMap  = "outside-ways"  // the same for clients outside: one map would be a loop
	guardsMap       = "guards"        // address, protocol, port ─► chain that lets through whom it may
	backendsMap     = "backends"      // group, number ─► address, port
	idsMap          = "ids"           // group, number ─► a backend's id, where clients stay with theirs
	clientsMap      = "clients"       // client, group ─► id
	stayMap         = "stay"          // group, id ─► address, port
	refusedSet      = "refused"       // address, protocol, port
	droppedSet      = "dropped"
	refusedPortsSet = "refused-ports" // protocol, port
	droppedPortsSet = "dropped-ports"
	hairpinSet      = "hairpin" // an address, twice
	membersSet      = "members"
)

// leads are the maps of ways.
var leads = map[services.Where]string{
	services.AtAddress: servicesMap, services.AtPort: portsMap, services.AtAddressOutside: outsideMap, services.AtPortOutside: outsidePortsMap,
}

// Flags of a set (NFT_SET_…).
const (
	setMap     = 0x8
	setTimeout = 0x10
	setEval    = 0x20
)

// set is one set or map of a table.
type set struct {
	name      string
	flags     uint32
	key, data nftables.SetDatatype // data without a name: a set
	limit     uint32
}

// keyLen and dataLen are in bytes, as the kernel counts them.
func (s *set) keyLen() uint32  { return (s.key.Bytes + 3) &^ 3 }
func (s *set) dataLen() uint32 { return (s.data.Bytes + 3) &^ 3 }

func newSets(v4 bool) []set {
	ip, mark, port := nftables.TypeIP6Addr, nftables.TypeMark, nftables.TypeInetService
	if v4 {
		ip = nftables.TypeIPAddr
	}
	join := nftables.MustConcatSetType
	at, atPort := join(ip, nftables.TypeInetProto, port), join(nftables.TypeInetProto, port)
	pair, value, backend := join(mark, mark), join(mark, mark, mark), join(ip, port)
	var none nftables.SetDatatype
	sets := []set{
		{waysMap, setMap, pair, nftables.TypeVerdict, 0}, {outsideWaysMap, setMap, pair, nftables.TypeVerdict, 0},
		{guardsMap, setMap, at, nftables.TypeVerdict, 0},
		{backendsMap, setMap, join(mark, mark, mark), backend, 0}, {idsMap, setMap, join(mark, mark, mark), pair, 0},
		{stayMap, setMap, join(mark, mark, mark, mark), backend, 0},
		{clientsMap, setMap | setTimeout | setEval, join(ip, mark, mark), value, clientsLimit},
		{refusedSet, 0, at, none, 0}, {droppedSet, 0, at, none, 0},
		{refusedPortsSet, 0, atPort, none, 0}, {droppedPortsSet, 0, atPort, none, 0},
		{hairpinSet, 0, join(ip, ip), none, 0}, {membersSet, 0, ip, none, 0},
	}
	for _, name := range []string{servicesMap, outsideMap} {
		sets = append(sets, set{name, setMap, at, value, 0}, set{name + groupsOf, setMap, at, value, 0})
	}
	for _, name := range []string{portsMap, outsidePortsMap} {
		sets = append(sets, set{name, setMap, atPort, value, 0}, set{name + groupsOf, setMap, atPort, value, 0})
	}
	return sets
}

// make adds a message that makes the set.
func (s *set) make(w *wire, id uint32) {
	w.message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE)
	w.text(unix.NFTA_SET_TABLE, Name)
	w.text(unix.NFTA_SET_NAME, s.name)
	w.u32(unix.NFTA_SET_FLAGS, s.flags)
	w.u32(unix.NFTA_SET_KEY_TYPE, s.key.GetNFTMagic())
	w.u32(unix.NFTA_SET_KEY_LEN, s.keyLen())
	if s.flags&setMap != 0 {
		kind := s.data.GetNFTMagic()
		if s.data.Name == nftables.TypeVerdict.Name {
			kind = verdictType
		}
		w.u32(unix.NFTA_SET_DATA_TYPE, kind)
		w.u32(unix.NFTA_SET_DATA_LEN, s.dataLen())
	}
	if s.limit > 0 {
		at := w.nest(unix.NFTA_SET_DESC)
		w.u32(unix.NFTA_SET_DESC_SIZE, s.limit)
		w.unnest(at)
	}
	w.u32(unix.NFTA_SET_ID, id)
}

// verdictType is NFT_DATA_VERDICT.
const verdictType = 0xffffff00

// The keys below are laid out as the kernel does concatenations: every part padded to four bytes.

// Each is appended to what is there already.

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

// A group, a way and a backend's id are two words. As the value of a map they have one in front that nobody uses.

func unused(to []byte) []byte { return append(to, 0, 0, 0, 0) }

func groupKey(to []byte, id services.GroupID) []byte {
	return binary.BigEndian.AppendUint64(to, uint64(id))
}

func numberedKey(to []byte, id services.GroupID, number int) []byte {
	return binary.NativeEndian.AppendUint32(groupKey(to, id), uint32(number))
}

// backendID tells a backend from the others of its group.
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

// wayKey is how many backends there are, and everything else about the way.
func wayKey(to []byte, w services.Way) []byte {
	how := uint32(w.Where) | uint32(w.Source)<<4 | w.Sticky<<8
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(to, w.Backends), how)
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
