package check

import (
	"strings"
	"syscall"
	"testing"
)

// TestCheckFindsWhatIsBroken breaks a network again and again, several things at once that do not touch each other, and reads
// what the check says.
func TestCheckFindsWhatIsBroken(t *testing.T) {
	h := newHosts(t)
	n1, n2, n3 := h.nodes[0], h.nodes[1], h.nodes[2]
	wants := func(t *testing.T, all ...string) {
		t.Helper()
		text := h.check()
		for _, want := range all {
			found := false
			for line := range strings.Lines(text) {
				found = found || matches(line, want)
			}
			if !found {
				t.Errorf("no line with %q", want)
			}
		}
		if broken := strings.Count(text, "BROKEN"); broken != len(all) && !strings.Contains(text, "nothing is broken") {
			t.Errorf("%d things are said to be broken, want %d", broken, len(all))
		}
		for _, n := range h.nodes {
			if left := n.taken(); len(left) > 0 {
				t.Errorf("%s: addresses still taken: %v", n.name, left)
			}
		}
	}
	t.Run("nothing", func(t *testing.T) { wants(t, "nothing is broken") })
	t.Run("one way of the tunnel, names on a node, ports of a node", func(t *testing.T) {
		n3.sh(`nft add table ip test; nft 'add chain ip test in { type filter hook prerouting priority -300 ; }'
			nft add rule ip test in ip saddr 192.0.2.11 udp dport 8472 drop; nft add rule ip test in tcp dport 30000-32767 drop`)
		n2.sh(`nft add table ip test; nft 'add chain ip test in { type filter hook prerouting priority -300 ; }'
			nft add rule ip test in udp dport 53 drop; nft add rule ip test in tcp dport 53 drop`)
		wants(t,
			"node n1 → node n3: pod to pod: UDP 8472 from 192.0.2.11 to 192.0.2.140 seems blocked (node to node works)",
			"node n3 → node n1: pod to pod: packets arrive and the answers do not come back UDP 8472 from 192.0.2.11 to 192.0.2.140 seems blocked",
			"node n2: DNS: no answer",
			"node n1 → node n3: NodePort: no answer a firewall drops it",
			"node n2 → node n3: NodePort: no answer a firewall drops it")
		for _, n := range []*node{n2, n3} {
			n.sh("nft delete table ip test")
		}
	})
	t.Run("a route, rules for Services, large packets, other names", func(t *testing.T) {
		n1.stopNetwork()
		n1.sh("ip route del 10.244.2.0/24; nft delete table ip balsa")
		h.router.sh("nft insert rule ip guard pass meta length gt 1400 drop; nft add table ip names; nft 'add chain ip names in { type filter hook input priority 0 ; }'; nft add rule ip names in udp dport 53 drop")
		wants(t,
			"node n1 → node n2: pod to pod: packets with pods' addresses",
			"node n2 → node n3: packet size: packets of more than 1350 bytes disappear pods send up to 1450 must carry 1500",
			"node n3 → node n2: packet size: packets of more than 1350 bytes disappear",
		)
	})
	t.Run("a host", func(t *testing.T) {
		h.router.sh("ip link set n3 down")
		wants(t, "node n3: not checked")
	})
	_ = syscall.SIGKILL
}

// matches tells whether a line has all of the words, in order.
func matches(line, words string) bool {
	for _, w := range strings.Fields(words) {
		_, rest, ok := strings.Cut(line, w)
		if !ok {
			return false
		}
		line = rest
	}
	return true
}
