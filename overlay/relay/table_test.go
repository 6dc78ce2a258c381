package relay

import (
	"net/netip"
	"testing"

	"github.com/balsahq/balsa/overlay/routes"
)

func packet(from, to string) []byte {
	a, b := netip.MustParseAddr(from), netip.MustParseAddr(to)
	if a.Is4() {
		return append(append(append([]byte{0x45}, make([]byte, 11)...), a.AsSlice()...), b.AsSlice()...)
	}
	return append(append(append([]byte{0x60}, make([]byte, 7)...), a.AsSlice()...), b.AsSlice()...)
}

var tunnel = &routes.Tunnel{
	Port: 8285, Pods: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:0:0:1::/64")},
	Peers: []routes.Peer{
		{Pods: netip.MustParsePrefix("10.244.2.0/24"), Via: netip.MustParseAddr("192.0.2.2")},
		{Pods: netip.MustParsePrefix("10.244.3.0/25"), Via: netip.MustParseAddr("192.0.2.3")},
		{Pods: netip.MustParsePrefix("fd00:0:0:2::/64"), Via: netip.MustParseAddr("192.0.2.2")},
	},
}

func TestTable(t *testing.T) {
	table := newTable(tunnel)
	for to, want := range map[string]string{"10.244.2.9": "192.0.2.2:8285", "10.244.3.127": "192.0.2.3:8285", "10.244.3.128": "", "10.244.1.1": ""} {
		at := table.target(packet("10.244.1.2", to))
		if at == nil && want != "" || at != nil && at.String() != want {
			t.Errorf("%s goes to %v, want %s", to, at, want)
		}
	}
	if at := table.target(packet("fd00:0:0:1::2", "fd00:0:0:2::2")); at == nil || at.String() != "192.0.2.2:8285" {
		t.Errorf("IPv6 goes to %v", at)
	}
	for _, tt := range []struct {
		from, to, node string
		want           bool
	}{
		{"10.244.2.2", "10.244.1.2", "192.0.2.2", true},
		{"10.244.2.0", "10.244.1.0", "192.0.2.2", true}, // the nodes themselves
		{"fd00:0:0:2::2", "fd00:0:0:1::2", "192.0.2.2", true},
		{"10.244.2.2", "10.244.1.2", "192.0.2.3", false},
		{"10.244.2.2", "10.244.3.2", "192.0.2.2", false},
		{"10.244.1.3", "10.244.1.2", "192.0.2.2", false},
		{"fd00:0:0:3::2", "fd00:0:0:1::2", "192.0.2.2", false},
		{"10.244.2.2", "10.244.1.2", "192.0.2.9", false},
	} {
		if got := table.mayComeFrom(packet(tt.from, tt.to), netip.MustParseAddr(tt.node)); got != tt.want {
			t.Errorf("%s to %s by %s: %v", tt.from, tt.to, tt.node, got)
		}
	}
}

func FuzzEnds(f *testing.F) {
	f.Add(packet("10.244.2.2", "10.244.1.2"))
	f.Add(packet("fd00:0:0:2::2", "fd00:0:0:1::2"))
	table, node := newTable(tunnel), netip.MustParseAddr("192.0.2.2")
	f.Fuzz(func(t *testing.T, b []byte) {
		table.target(b)
		if table.mayComeFrom(b, node) {
			if from, _, ok := addressesOf(b); !ok || !inside(from, table.from[node]) {
				t.Errorf("% x", b)
			}
		}
	})
}

// BenchmarkTable is what a packet costs beside the system calls.
func BenchmarkTable(b *testing.B) {
	table, p, node := newTable(tunnel), packet("10.244.2.2", "10.244.1.2"), netip.MustParseAddr("192.0.2.2")
	b.ReportAllocs()
	for b.Loop() {
		if !table.mayComeFrom(p, node) {
			b.Fatal("not admitted")
		}
	}
}
