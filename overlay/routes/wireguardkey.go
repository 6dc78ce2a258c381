package routes

import "encoding/base64"

// KeyAnnotation of a Node is its WireGuard public key in base64, as long as it encrypts packets to other nodes' pods. Only the
// node itself may write its Node object.
const KeyAnnotation = "balsa.dev/wireguard-public-key"

// Key is a WireGuard public key; zero is none.
type Key [32]byte

// ParseKey parses a key in base64; it returns zero for any other text.
func ParseKey(text string) (k Key) {
	if raw, err := base64.StdEncoding.DecodeString(text); err == nil && len(raw) == len(k) {
		copy(k[:], raw)
	}
	return k
}

// String is the key in base64, as wg(8) prints it.
func (k Key) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// claimKey gives the key to the node, unless another node has it, whose name it then returns.
func (c *claims) claimKey(k Key, name string) (other string, ok bool) {
	if other, taken := c.keys[k]; taken {
		return other, false
	}
	c.keys[k] = name
	return "", true
}

// admitKey tells whether the key is the node's own. For WireGuard, two nodes with one key would be one peer.
func (b *builder) admitKey(name string, k Key, taken *claims) bool {
	other, ok := taken.claimKey(k, name)
	if !ok {
		b.fault("node %s has the WireGuard key of node %s, which had it first: the pods of %s are not reached; remove its key file, "+
			"so that it makes another", name, other, name)
	}
	return ok
}

// agreesOnEncryption tells whether this node and another agree on encryption; if not, it notes a fault.
func (b *builder) agreesOnEncryption(n *Node) bool {
	encrypts := n.Key != Key{}
	switch {
	case b.cfg.Mode == WireGuard && !encrypts:
		b.fault("node %s has published no WireGuard key, and this node encrypts: its pods are not reached; give all nodes "+
			"--overlay-encryption=wireguard", n.Name)
	case b.cfg.Mode != WireGuard && encrypts:
		b.fault("node %s encrypts, and this node does not: its pods are not reached; give all nodes the same --overlay-encryption", n.Name)
	default:
		return true
	}
	return false
}
