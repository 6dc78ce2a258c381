package check

import (
	"path/filepath"
	"slices"
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
		for line := range strings.Lines(text) {
			if what, ok := strings.CutPrefix(line, "BROKEN"); ok && !slices.ContainsFunc(all, func(want string) bool { return matches(what, want) }) {
				t.Errorf("not asked for: %s", what)
			}
		}
		for _, want := range all {
			if !slices.ContainsFunc(strings.Split(text, "\n"), func(line string) bool { return matches(line, want) }) {
				t.Errorf("no line with %q", want)
			}
		}
		for _, n := range h.nodes {
			if left := n.taken(); len(left) > 0 && n.agent != nil {
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
			"node n1 → node n2: pod to pod: node n1 has no route to the pods of n2",
			"node n2 → node n1: pod to pod: packets arrive and the answers do not come back; node n1 has no route to the pods of n2",
			"nodes n1, n2, n3 → nodes n1, n2, n3: packet size: for example packets of more than 1350 bytes disappear pods send up to 1450 must carry 1500",
			"node n1: pod to Service: rules for Services on n1 are missing",
			"node n1 → node n3: pod to Service: rules for Services on n1 are missing",
			"node n1 → node n3: pod to node: pods' packets are not masqueraded on n1",
			"nodes n1, n2, n3 → node n1: NodePort: for example n1 → n1: connection refused",
			"node n1: DNS: connection refused: no server answers at the cluster's DNS address",
			"node n2: DNS, names outside the cluster: answer SERVFAIL",
			"node n3: DNS, names outside the cluster: answer SERVFAIL",
		)
		h.router.sh("nft delete table ip names; nft flush chain ip guard pass")
		n1.stopNetwork = h.startNetwork(n1)
	})
	t.Run("killed agent", func(t *testing.T) { probesOfAKilledAgentAreRemoved(t, h) })
	h.startAgent(n1)
	t.Run("a host", func(t *testing.T) {
		h.router.sh("ip link set n3 down")
		wants(t, "node n3: not checked: no route to host", "node n1 → node n3: node to node: to 192.0.2.140:10250", "node n2 → node n3: node to node: to 192.0.2.140:10250")
	})
}

// probesOfAKilledAgentAreRemoved: what plugins keep of a probe whose agent was killed is freed at the next start; and a
// probe that nobody closes closes itself.
func probesOfAKilledAgentAreRemoved(t *testing.T, h *hosts) {
	n := h.nodes[0]
	open := func(seconds int) {
		t.Helper()
		reply, err := h.call(t.Context(), n.name, &Request{Run: newRun(), Open: &Open{Seconds: seconds}})
		if err != nil || len(reply.Opened.Addresses) != 1 || len(n.taken()) == 0 {
			t.Fatalf("%v %v, taken %v", reply, err, n.taken())
		}
	}
	open(600)
	if err := n.agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if len(n.taken()) != 1 {
		t.Fatalf("the test shows nothing: %v", n.taken())
	}
	h.eventually("the killed agent is gone", func() bool { return syscall.Kill(n.agent.Process.Pid, 0) != nil })
	h.startAgent(n)
	h.eventually("nothing is left of the killed agent's probe", func() bool { return len(n.taken()) == 0 })

	open(1)
	h.eventually("a probe closed itself", func() bool { return len(n.taken()) == 0 })

	for range mostProbes {
		open(600)
	}
	if _, err := h.call(t.Context(), n.name, &Request{Run: newRun(), Open: &Open{Seconds: 1}}); err == nil || !strings.Contains(err.Error(), "checks are under way") {
		t.Errorf("one check too many: %v", err)
	}
	if err := n.agent.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	h.eventually("an agent that ends leaves nothing", func() bool {
		left, err := filepath.Glob(filepath.Join(n.dir, "check", "*"))
		return len(n.taken()) == 0 && err == nil && len(left) == 0
	})
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
