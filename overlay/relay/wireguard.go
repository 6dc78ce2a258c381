package relay

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/balsahq/balsa/overlay/routes"
)

// LoadKey reads this node's WireGuard private key from a file, which it makes if it is missing. Only the file's owner may
// read it, and it never leaves the node.
func LoadKey(path string) (*ecdh.PrivateKey, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("WireGuard key: %w", err)
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err == nil {
		var key *ecdh.PrivateKey
		if key, err = ecdh.X25519().NewPrivateKey(raw); err == nil {
			return key, nil
		}
	}
	return nil, fmt.Errorf("WireGuard key: %s holds no valid key: %w; remove the file, and the node makes a new key", path, err)
}

func makeKey(path string) (*ecdh.PrivateKey, error) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("WireGuard key: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("WireGuard key: %w", err)
	}
	text := base64.StdEncoding.EncodeToString(key.Bytes()) + "\n"
	beside := path + ".new"
	if err := os.WriteFile(beside, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("WireGuard key: %w", err)
	}
	if err := os.Rename(beside, path); err != nil {
		return nil, fmt.Errorf("WireGuard key: %w", err)
	}
	return key, nil
}

// crypt carries packets encrypted, with WireGuard's protocol as wireguard-go implements it.
type crypt struct {
	device *device.Device
	link   *cryptLink
	ended  chan struct{}
	once   sync.Once

	peers map[routes.Key]string // the configuration of each peer in the device; only Run's goroutine uses it
}

// openCrypt starts a device between a link and a socket, which it owns from then on.
func openCrypt(r *Relay, ends *carrier, at endpoint) (packetCarrier, error) {
	c := &crypt{ended: make(chan struct{}), peers: map[routes.Key]string{}}
	c.link = &cryptLink{carrier: ends, events: make(chan tun.Event), linkGone: c.end}
	logger := &device.Logger{Verbosef: device.DiscardLogf, Errorf: func(format string, args ...any) {
		r.cfg.Logger.Debug("wireguard", "message", fmt.Sprintf(format, args...))
	}}
	c.device = device.NewDevice(c.link, &cryptWire{carrier: ends}, logger)
	if err := c.device.IpcSet(fmt.Sprintf("private_key=%x\n", r.cfg.Key.Bytes())); err != nil {
		c.stop()
		return nil, fmt.Errorf("WireGuard: %w", err)
	}
	if err := c.device.Up(); err != nil {
		c.stop()
		return nil, fmt.Errorf("WireGuard: %w", err)
	}
	return c, nil
}

func (c *crypt) end() { c.once.Do(func() { close(c.ended) }) }

func (c *crypt) done() <-chan struct{} { return c.ended }

func (c *crypt) stop() {
	c.device.Close()
	_ = c.link.wire.Close() // the device closes the socket only if it has opened it
	c.end()
}

// update sets the device's peers. Those that did not change keep their sessions.
func (c *crypt) update(t *routes.Tunnel) error {
	want := map[routes.Key]string{}
	for i := range t.Peers {
		p := &t.Peers[i]
		if want[p.Key] == "" {
			want[p.Key] = fmt.Sprintf("endpoint=%s\nreplace_allowed_ips=true\n", netip.AddrPortFrom(p.Via, uint16(t.Port)))
		}
		want[p.Key] += fmt.Sprintf("allowed_ip=%s\n", p.Pods)
	}
	var text strings.Builder
	for key := range c.peers {
		if _, ok := want[key]; !ok {
			fmt.Fprintf(&text, "public_key=%s\nremove=true\n", hex.EncodeToString(key[:]))
		}
	}
	for key, settings := range want {
		if c.peers[key] != settings {
			fmt.Fprintf(&text, "public_key=%s\n%s", hex.EncodeToString(key[:]), settings)
		}
	}
	if text.Len() == 0 {
		return nil
	}
	if err := c.device.IpcSet(text.String()); err != nil {
		c.peers = map[routes.Key]string{} // forget them, so that the next update sets all peers
		return fmt.Errorf("WireGuard's peers: %w", err)
	}
	c.peers = want
	return nil
}
