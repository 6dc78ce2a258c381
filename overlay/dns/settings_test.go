package dns

import (
	"net"
	"net/netip"
	"testing"
)

// Settings that are taken name resolvers by their addresses, and never this DNS itself.
func FuzzSettings(f *testing.F) {
	f.Add(`{"example.com": ["192.0.2.53"]}`, `["192.0.2.53", "[2001:db8::1]:5353"]`)
	f.Add(`{".": [""]}`, `["10.96.0.10"]`)
	f.Add(`[`, `null`)
	own := netip.MustParseAddr("10.96.0.10")
	f.Fuzz(func(t *testing.T, stubs, upstreams string) {
		s, err := ParseSettings(map[string]string{StubDomainsKey: stubs, UpstreamsKey: upstreams}, "cluster.local", []netip.Addr{own})
		if err != nil {
			return
		}
		all := s.Upstreams
		for _, list := range s.Stubs {
			all = append(all, list...)
		}
		for _, at := range all {
			host, _, err := net.SplitHostPort(at)
			if ip, fault := netip.ParseAddr(host); err != nil || fault != nil || ip.Unmap() == own {
				t.Errorf("%q was taken: %v %v", at, err, fault)
			}
		}
	})
}
