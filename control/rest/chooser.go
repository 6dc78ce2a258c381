package rest

import (
	"errors"
	"fmt"
	"iter"
	"math/big"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"

	api "k8s.io/kubernetes/pkg/apis/core"
)

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last int }

func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// The texts of upstream's allocators, which clients and tests look for.
var (
	errFull          = errors.New("range is full")
	errIPTaken       = errors.New("provided IP is already allocated")
	errPortTaken     = errors.New("provided port is already allocated")
	errPortForbidden = "provided port is not in the valid range. The range of valid ports is %s"
	errIPForbidden   = "the provided IP (%v) is not in the valid range. The range of valid IPs is %s"
)

// randomTries is how often a random position is tried before the range is searched in order.
const randomTries = 32

// chooser finds free addresses and ports. It has no memory: an address is taken if the newest state of the store has a
// claim on it, or if this request has chosen it already.
type chooser struct {
	blocks blocks
	more   func() blocks // ready ServiceCIDRs beside blocks; nil: none
	ports  PortRange
	taken  func(key string) bool
	mine   map[string]bool
}

func (c *chooser) free(key string) bool { return !c.mine[key] && !c.taken(key) }

// blocks are the cluster's Service networks: one, or one of each family with the primary family first.
type blocks []block

// primary is the family of Services that name none.
func (b blocks) primary() api.IPFamily { return b[0].family() }

// of returns the network of a family.
func (b blocks) of(f api.IPFamily) (block, bool) {
	for _, one := range b {
		if one.family() == f {
			return one, true
		}
	}
	return block{}, false
}

// block is one network.
type block struct{ *net.IPNet }

func (b block) family() api.IPFamily {
	if b.IP.To4() != nil {
		return api.IPv4Protocol
	}
	return api.IPv6Protocol
}

// size is the number of addresses without the network and, for IPv4, the broadcast address; IPv6 is capped.
func (b block) size() int64 {
	ones, bits := b.Mask.Size()
	n := int64(1) << min(bits-ones, 20)
	if bits == 32 {
		return max(n-2, 0)
	}
	return n - 1
}

func (b block) at(i int64) string {
	base := new(big.Int).SetBytes(b.IP.Mask(b.Mask))
	base.Add(base, big.NewInt(1+i))
	raw := base.Bytes()
	size := net.IPv6len
	if b.IP.To4() != nil {
		size = net.IPv4len
	}
	ip := make(net.IP, size)
	copy(ip[size-len(raw):], raw)
	return ip.String()
}

// dynamicStart returns the index at which dynamic allocation starts. The addresses below it are left for Services that
// request one by name (KEP-3070).
func (b block) dynamicStart() int64 {
	n := b.size()
	if n < 16 {
		return 0
	}
	return max(16, min(n/16, 256))
}

// networks returns an iterator over a family's networks: the configured one, then the ready ServiceCIDRs. It reads the
// ServiceCIDR objects only if the configured network is not enough.
func (c *chooser) networks(f api.IPFamily) iter.Seq[block] {
	return func(yield func(block) bool) {
		configured, ok := c.blocks.of(f)
		if !ok || !yield(configured) || c.more == nil {
			return
		}
		for _, b := range c.more() {
			if b.family() == f && b.String() != configured.String() && !yield(b) {
				return
			}
		}
	}
}

// nextIP returns a free address of a family, from the first network with one.
func (c *chooser) nextIP(f api.IPFamily) (string, error) {
	for b := range c.networks(f) {
		if ip, ok := c.nextOf(b); ok {
			return c.reserveIP(ip), nil
		}
	}
	return "", errFull
}

// nextOf returns a free address of a network: a random one of the upper band, otherwise one of the lower.
func (c *chooser) nextOf(b block) (string, bool) {
	n, band := b.size(), b.dynamicStart()
	if band >= n {
		band = 0
	}
	for range min(randomTries, n) {
		if ip := b.at(band + rand.Int64N(n-band)); c.free(ipClaims + ip) {
			return ip, true
		}
	}
	if n == 0 {
		return "", false
	}
	start := rand.Int64N(n - band)
	for i := range n - band {
		if ip := b.at(band + (start+i)%(n-band)); c.free(ipClaims + ip) {
			return ip, true
		}
	}
	for i := range band {
		if ip := b.at(i); c.free(ipClaims + ip) {
			return ip, true
		}
	}
	return "", false
}

func (c *chooser) reserveIP(ip string) string {
	c.mine[ipClaims+ip] = true
	return ip
}

// checkIP checks a requested address.
func (c *chooser) checkIP(ip string) error {
	p := net.ParseIP(ip)
	var all []string
	inside := false
	for b := range c.networks(familyOf(ip)) {
		all = append(all, b.String())
		if inside = p != nil && b.Contains(p) && b.usable(p); inside {
			break
		}
	}
	if !inside {
		if len(all) == 0 {
			all = []string{c.blocks[0].String()}
		}
		return fmt.Errorf(errIPForbidden, ip, strings.Join(all, ", "))
	}
	if !c.free(ipClaims + p.String()) {
		return errIPTaken
	}
	c.reserveIP(p.String())
	return nil
}

// usable reports whether ip is neither the network address nor, for IPv4, the broadcast address.
func (b block) usable(ip net.IP) bool {
	base := b.IP.Mask(b.Mask)
	if ip.Equal(base) {
		return false
	}
	if v4 := ip.To4(); v4 != nil {
		first, mask := base.To4(), net.IP(b.Mask)
		last := true
		for i := range v4 {
			last = last && v4[i] == first[i]|^mask[i]
		}
		return !last
	}
	return true
}

func portKey(p int) string { return portClaims + strconv.Itoa(p) }

// nextPort returns a free port. It leaves the lower band of the range for requests by number (KEP-3668).
func (c *chooser) nextPort() (int, error) {
	n := c.ports.Last - c.ports.First + 1
	band := 0
	if n >= 32 {
		band = max(16, min(n/32, 128))
	}
	if band >= n {
		band = 0
	}
	for range randomTries {
		if p := c.ports.First + band + rand.IntN(n-band); c.free(portKey(p)) {
			c.mine[portKey(p)] = true
			return p, nil
		}
	}
	start := rand.IntN(n - band)
	for i := range n {
		p := c.ports.First + (band+start+i)%n
		if c.free(portKey(p)) {
			c.mine[portKey(p)] = true
			return p, nil
		}
	}
	return 0, errFull
}

// checkPort checks a requested port.
func (c *chooser) checkPort(p int) error {
	if p < c.ports.First || p > c.ports.Last {
		return fmt.Errorf(errPortForbidden, c.ports)
	}
	if !c.free(portKey(p)) {
		return errPortTaken
	}
	c.mine[portKey(p)] = true
	return nil
}
