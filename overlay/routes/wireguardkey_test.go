package routes

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func keyed(n Node, k byte) Node {
	n.Key = Key{k}
	return n
}

// TestEncryptedWays: every node is a peer of the tunnel with its key, neighbours too, and those without a key, or with
// another's, are not reached and told of.
func TestEncryptedWays(t *testing.T) {
	near, far := keyed(node("near", "192.0.2.2", "10.244.2.0/24", 2), 2), keyed(node("far", "198.51.100.3", "10.244.3.0/24", 3), 3)
	plain, thief := node("plain", "192.0.2.4", "10.244.4.0/24", 4), keyed(node("thief", "192.0.2.5", "10.244.5.0/24", 5), 2)
	cfg := config(WireGuard)
	cfg.Port = 51820
	p := Build(cfg, []Node{keyed(me, 1), near, far, plain, thief}, here)
	if p.Tunnel == nil || !p.Tunnel.Relayed || !p.Tunnel.Encrypted || p.Tunnel.Port != 51820 || len(p.Gateways) != 0 || p.MTU != 1440 {
		t.Fatalf("%+v %+v", p, p.Tunnel)
	}
	if peers := p.Tunnel.Peers; len(peers) != 2 || peers[0].Key != near.Key || peers[1].Key != far.Key || peers[1].Via != far.Address {
		t.Errorf("peers %+v", peers)
	}
	for _, m := range p.Members {
		if m == plain.Address || m == thief.Address {
			t.Errorf("%s may send to the tunnel's port", m)
		}
	}
	text := strings.Join(p.Faults, "\n")
	for _, want := range []string{"node plain has published no WireGuard key", "node thief has the WireGuard key of node near"} {
		if len(p.Faults) != 2 || !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, p.Faults)
		}
	}
}

// TestANodeThatDoesNotEncryptReachesNoneThatDoes, and says so.
func TestANodeThatDoesNotEncryptReachesNoneThatDoes(t *testing.T) {
	p := Build(config(Auto), []Node{me, keyed(node("near", "192.0.2.2", "10.244.2.0/24", 2), 2), node("plain", "192.0.2.4", "10.244.4.0/24", 4)}, here)
	if len(p.Gateways) != 1 || p.Gateways[0].Node != "plain" || p.Tunnel != nil || len(p.Faults) != 1 || !strings.Contains(p.Faults[0], "node near encrypts") {
		t.Errorf("%+v", p)
	}
}

func TestTheMTUOfEncryptedWaysOfIPv6(t *testing.T) {
	me := keyed(both(Node{Name: "me", Since: 1}, "2001:db8::1", "fd00:244:0:1::/64"), 1)
	far := keyed(both(Node{Name: "far", Since: 2}, "2001:db8:0:9::3", "fd00:244:0:3::/64"), 2)
	if p := Build(config6(WireGuard), []Node{me, far}, here6); p.MTU != 1420 || p.Tunnel == nil || len(p.Tunnel.Peers) != 1 {
		t.Errorf("%+v", p)
	}
}

func TestKeysOfNodes(t *testing.T) {
	want := Key{1, 2, 3}
	for text, k := range map[string]Key{want.String(): want, "": {}, "AAAA": {}, "no base64": {}, want.String() + "A": {}} {
		n := NodeOf(&v1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{KeyAnnotation: text}}})
		if n.Key != k {
			t.Errorf("%q is read as %v", text, n.Key)
		}
	}
}
