package nft

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/balsahq/balsa/overlay/routing"
)

// affinityLimit bounds the clients remembered for one service; the kernel forgets none early but takes no more.
const affinityLimit = 65535

// sets are the named maps of the table.
type sets struct {
	services, nodePorts, nobody, nobodyAtPort, hairpin, members *nftables.Set

	table *nftables.Table
	v4    bool
}

func addressType(v4 bool) nftables.SetDatatype {
	if v4 {
		return nftables.TypeIPAddr
	}
	return nftables.TypeIP6Addr
}

// backendType is the value of a map to backends: address and port.
func backendType(v4 bool) nftables.SetDatatype {
	return nftables.MustConcatSetType(addressType(v4), nftables.TypeInetService)
}

func newSets(table *nftables.Table, v4 bool) sets {
	ip := addressType(v4)
	verdicts := func(name string, key nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{
			Table: table, Name: name, IsMap: true, Concatenation: true, KeyType: key, DataType: nftables.TypeVerdict,
			KeyByteOrder: binaryutil.BigEndian,
		}
	}
	byAddress := nftables.MustConcatSetType(ip, nftables.TypeInetProto, nftables.TypeInetService)
	byPort := nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)
	return sets{
		services: verdicts("services", byAddress), nodePorts: verdicts("node-ports", byPort),
		nobody: verdicts("nobody", byAddress), nobodyAtPort: verdicts("nobody-at-port", byPort),
		hairpin: &nftables.Set{
			Table: table, Name: "hairpin", Concatenation: true, KeyType: nftables.MustConcatSetType(ip, ip),
			KeyByteOrder: binaryutil.BigEndian,
		},
		members: &nftables.Set{Table: table, Name: "members", KeyType: ip, KeyByteOrder: binaryutil.BigEndian},
		table:   table, v4: v4,
	}
}

func (s *sets) all() []*nftables.Set {
	return []*nftables.Set{s.services, s.nodePorts, s.nobody, s.nobodyAtPort, s.hairpin, s.members}
}

// affinity is the map from clients to backends of that name.
func (s *sets) affinity(name string, timeout time.Duration) *nftables.Set {
	return &nftables.Set{
		Table: s.table, Name: name, IsMap: true, Dynamic: true, HasTimeout: true, Timeout: timeout, Size: affinityLimit,
		KeyType: addressType(s.v4), DataType: backendType(s.v4), KeyByteOrder: binaryutil.BigEndian,
	}
}

// The keys below are laid out as the kernel does concatenations: every part padded to four bytes.

func portKey(p routing.NodePort) []byte {
	key := []byte{byte(p.Protocol), 0, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint16(key[4:], p.Port)
	return key
}

func addressKey(a routing.Address) []byte {
	return append(a.IP.AsSlice(), portKey(routing.NodePort{Protocol: a.Protocol, Port: a.Port})...)
}

func backendValue(b netip.AddrPort) []byte {
	return binary.BigEndian.AppendUint16(b.Addr().AsSlice(), b.Port())[: b.Addr().BitLen()/8+2 : b.Addr().BitLen()/8+2]
}

func paddedBackend(b netip.AddrPort) []byte { return append(backendValue(b), 0, 0) }

func parsePort(key []byte) (routing.NodePort, bool) {
	if len(key) != 8 {
		return routing.NodePort{}, false
	}
	return routing.NodePort{Protocol: routing.Protocol(key[0]), Port: binary.BigEndian.Uint16(key[4:])}, true
}

func parseAddress(key []byte) (routing.Address, bool) {
	if len(key) < 8 {
		return routing.Address{}, false
	}
	ip, ok := netip.AddrFromSlice(key[:len(key)-8])
	port, portOK := parsePort(key[len(key)-8:])
	return routing.Address{IP: ip, Protocol: port.Protocol, Port: port.Port}, ok && portOK
}

func parseBackend(value []byte, v4 bool) (netip.AddrPort, bool) {
	size := 16
	if v4 {
		size = 4
	}
	if len(value) < size+2 {
		return netip.AddrPort{}, false
	}
	ip, ok := netip.AddrFromSlice(value[:size])
	return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(value[size:])), ok
}

func hairpinKey(a netip.Addr) []byte { return append(a.AsSlice(), a.AsSlice()...) }

func memberKey(a netip.Addr) []byte { return a.AsSlice() }

func gotoChain(name string) *expr.Verdict { return &expr.Verdict{Kind: expr.VerdictGoto, Chain: name} }

func fateVerdict(f routing.Fate) *expr.Verdict {
	if f == routing.Drop {
		return &expr.Verdict{Kind: expr.VerdictDrop}
	}
	return gotoChain(rejectChain)
}
