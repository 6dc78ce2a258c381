package rest

import (
	"net"
	"testing"
)

func chooserOf(t *testing.T, cidr string, taken map[string]bool) *chooser {
	t.Helper()
	_, n, err := net.ParseCIDR(cidr)
	if err != nil {
		t.Fatal(err)
	}
	return &chooser{blocks: blocks{{n}}, ports: PortRange{30000, 30003}, mine: map[string]bool{}, taken: func(k string) bool { return taken[k] }}
}

func TestEveryAddressOfARangeIsGivenOnceAndThenItIsFull(t *testing.T) {
	for cidr, want := range map[string]int{"10.0.0.0/28": 14, "10.0.0.0/24": 254, "fd00::/124": 15} {
		c := chooserOf(t, cidr, nil)
		seen := map[string]bool{}
		for {
			ip, err := c.nextIP(c.blocks.primary())
			if err != nil {
				break
			}
			if seen[ip] || !c.blocks[0].Contains(net.ParseIP(ip)) || !c.blocks[0].usable(net.ParseIP(ip)) {
				t.Fatalf("%s: %s twice or not usable", cidr, ip)
			}
			seen[ip] = true
		}
		if len(seen) != want {
			t.Errorf("%s: %d addresses, want %d", cidr, len(seen), want)
		}
	}
}

func TestTheLowerBandIsLeftForThoseWhoAsk(t *testing.T) {
	c := chooserOf(t, "10.96.0.0/16", nil)
	for range 500 {
		ip, err := c.nextIP(c.blocks.primary())
		if err != nil {
			t.Fatal(err)
		}
		if v4 := net.ParseIP(ip).To4(); v4[2] == 0 {
			t.Fatalf("%s is in the lower band", ip)
		}
	}
}

func TestPortsRunOut(t *testing.T) {
	c := chooserOf(t, "10.0.0.0/28", map[string]bool{portKey(30002): true})
	for range 3 {
		if p, err := c.nextPort(); err != nil || p == 30002 {
			t.Fatalf("%d, %v", p, err)
		}
	}
	if _, err := c.nextPort(); err != errFull {
		t.Fatalf("%v", err)
	}
}

func TestAFullNetworkIsFollowedByTheNextOfItsFamily(t *testing.T) {
	c := chooserOf(t, "10.0.0.0/30", nil)
	read := 0
	c.more = func() blocks {
		read++
		var list blocks
		for _, text := range []string{"10.0.0.0/30", "fd00::/120", "10.9.0.0/31", "10.8.0.0/30"} {
			_, n, err := net.ParseCIDR(text)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, block{n})
		}
		return list
	}
	seen := map[string]bool{}
	for i := range 4 {
		ip, err := c.nextIP(c.blocks.primary())
		if err != nil {
			t.Fatal(err)
		}
		if i < 2 && read != 0 {
			t.Fatal("ServiceCIDRs are read while the configured network has addresses")
		}
		seen[ip] = true
	}
	if len(seen) != 4 || !seen["10.0.0.1"] || !seen["10.0.0.2"] || !seen["10.8.0.1"] || !seen["10.8.0.2"] {
		t.Fatal(seen)
	}
	if _, err := c.nextIP(c.blocks.primary()); err != errFull {
		t.Fatal(err)
	}
}
