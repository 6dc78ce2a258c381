package rules

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/balsahq/balsa/overlay/nettest"
	"github.com/balsahq/balsa/overlay/services"
)

// inVXLAN is the payload of a VXLAN packet that carries an IP packet from the source; an invalid source stands for a frame
// that carries no IP packet.
func inVXLAN(source netip.Addr) []byte {
	frame := slices.Concat([]byte{8, 0, 0, 0, 0, 0, 1, 0}, make([]byte, 12)) // VXLAN header, two link-layer addresses
	packet := make([]byte, 60)
	switch {
	case source.Is4():
		frame = binary.BigEndian.AppendUint16(frame, 0x0800)
		packet[0] = 0x45
		copy(packet[12:], source.AsSlice())
	case source.Is6():
		frame = binary.BigEndian.AppendUint16(frame, 0x86dd)
		packet[0] = 0x60
		copy(packet[8:], source.AsSlice())
	default:
		frame = binary.BigEndian.AppendUint16(frame, 0x0806) // ARP
	}
	return append(frame, packet...)
}

// TestTheTunnelTakesPacketsOfItsSenderOnly sends packets as the tunnel of another node would. Those that should pass are sent
// last: what arrives before them was not dropped.
func TestTheTunnelTakesPacketsOfItsSenderOnly(t *testing.T) {
	const tunnel = 8472
	for name, tt := range map[string]struct {
		here, member, stranger string
		v4                     bool
	}{
		"over IPv4": {"192.0.2.1", "192.0.2.2", "192.0.2.3", true},
		"over IPv6": {"2001:db8::1", "2001:db8::2", "2001:db8::3", false},
	} {
		t.Run(name, func(t *testing.T) {
			here, there := nettest.New(t), nettest.New(t)
			bits := map[bool]string{true: "/24", false: "/64"}[tt.v4]
			here.Cable("eth0", "", there, "eth0", "")
			here.Run("ip", "addr", "add", tt.here+bits, "dev", "eth0", "nodad")
			for _, a := range []string{tt.member, tt.stranger} {
				there.Run("ip", "addr", "add", a+bits, "dev", "eth0", "nodad")
			}
			table := open(t, here.FD(), tt.v4)
			member, stranger := netip.MustParseAddr(tt.member), netip.MustParseAddr(tt.stranger)
			source := func(of netip.Addr, network string) services.TunnelSource {
				return services.TunnelSource{Member: of, Network: netip.MustParsePrefix(network)}
			}
			plan := services.NewPlan()
			plan.SetMembers([]netip.Addr{member}, []services.TunnelSource{source(member, "10.244.2.0/24"), source(member, "fd00:244:0:2::/64"),
				source(member, "192.0.2.2/32"), source(netip.MustParseAddr(tt.here), "10.244.3.0/24")})
			if _, err := table.Apply(plan); err != nil {
				t.Fatal(err)
			}

			var receiver net.PacketConn
			if err := here.Do(func() (err error) {
				receiver, err = net.ListenPacket("udp", net.JoinHostPort(tt.here, "8472"))
				return err
			}); err != nil {
				t.Fatal(err)
			}
			defer receiver.Close()
			send := func(from netip.Addr, payload []byte) {
				t.Helper()
				if err := there.Do(func() error {
					c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(tt.here), tunnel)))
					if err != nil {
						return err
					}
					defer c.Close()
					_, err = c.Write(payload)
					return err
				}); err != nil {
					t.Fatal(err)
				}
			}
			for _, forged := range []string{"10.244.3.7", "10.244.1.7", "192.0.2.9", "fd00:244:0:3::7", "fd00:244:0:1::7"} {
				send(member, inVXLAN(netip.MustParseAddr(forged)))
			}
			send(member, inVXLAN(netip.Addr{}))
			send(member, inVXLAN(netip.MustParseAddr("10.244.2.7"))[:34]) // ends before the source
			send(stranger, inVXLAN(netip.MustParseAddr("10.244.2.7")))
			own := []string{"10.244.2.7", "10.244.2.255", "192.0.2.2", "fd00:244:0:2::7"}
			for _, a := range own {
				send(member, inVXLAN(netip.MustParseAddr(a)))
			}
			got := make([]byte, 128)
			for _, a := range own {
				_ = receiver.SetReadDeadline(time.Now().Add(10 * time.Second))
				n, _, err := receiver.ReadFrom(got)
				if err != nil {
					t.Fatalf("waiting for the packet of %s: %v", a, err)
				}
				if !slices.Equal(got[:n], inVXLAN(netip.MustParseAddr(a))) {
					t.Fatalf("a packet that should have been dropped arrived: % x", got[:n])
				}
			}
		})
	}
}
