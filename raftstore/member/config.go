package member

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
)

// DefaultPort is the UDP and TCP port of gossip.
const DefaultPort = 7946

// Config is the configuration of a Gossip.
type Config struct {
	// Name is the node name: unique among the live members.
	Name string
	// Meta is the data that this member announces; Name and Keys are filled in.
	Meta Meta
	// BindAddr is the IP address to listen on, "" for all.
	BindAddr string
	// BindPort is DefaultPort when 0 and a free port when negative.
	BindPort int
	// AdvertiseAddr is the IP address that this member announces; "" is BindAddr, or the machine's first global address.
	AdvertiseAddr string
	// Keys are the gossip keys, 32 bytes each. The first encrypts, all decrypt.
	Keys [][]byte
	// Seeds returns addresses, host or host:port, at which other members may be. It is called at each attempt and may be nil.
	Seeds func() []string
	// Transport replaces UDP and TCP in tests.
	Transport memberlist.Transport
	// Timing is DefaultTiming when zero.
	Timing Timing
	Logger *slog.Logger
}

// Timing is how often members probe each other, and when a member counts as failed.
type Timing struct {
	// ProbeInterval is the pause between probes; each probe asks one other
	// member, in turn.
	ProbeInterval time.Duration
	// ProbeTimeout is the wait for an answer before other members are asked to probe, and TCP is tried.
	ProbeTimeout time.Duration
	// SuspicionMult times ProbeInterval times max(1, log10 of the members) is the time in which a suspected member must refute the
	// suspicion, when another member confirms it.
	SuspicionMult int
	// SuspicionMax times that is the time when no other member confirms it.
	SuspicionMax int
	// IndirectChecks is how many other members are asked to probe a member that did not answer.
	IndirectChecks int
	// AwarenessMax bounds the factor by which a member that is slow itself stretches its timeouts.
	AwarenessMax int
	// GossipInterval is the pause between packets of news, while there is news.
	GossipInterval time.Duration
	// PushPull is the pause between exchanges of the whole table with one other member.
	PushPull time.Duration
	// Stream bounds an exchange over TCP, from dialing to the last byte.
	Stream time.Duration
	// Reconnect is the pause between attempts to reach members that failed.
	Reconnect time.Duration
}

// DefaultTiming returns the timing with which a dead machine among five is found in about 2 s.
func DefaultTiming() Timing {
	return Timing{
		ProbeInterval: 400 * time.Millisecond, ProbeTimeout: 200 * time.Millisecond,
		SuspicionMult: 3, SuspicionMax: 6, IndirectChecks: 3, AwarenessMax: 8,
		GossipInterval: 200 * time.Millisecond, PushPull: 15 * time.Second,
		Stream: 5 * time.Second, Reconnect: 15 * time.Second,
	}
}

// detection returns the time after which one of n members that is dead counts as failed at the latest, even if no other member confirmed
// the suspicion.
func (t Timing) detection(n int) time.Duration {
	scale := 1
	for ; n > 10; n /= 10 {
		scale++
	}
	return time.Duration(t.SuspicionMult*t.SuspicionMax*scale+4) * t.ProbeInterval
}

// Validate reports every fault at once.
func (c *Config) Validate() error {
	var errs []error
	if c.Name == "" || len(c.Name) > 253 || !printable(c.Name) {
		errs = append(errs, fmt.Errorf("member: node name %q", c.Name))
	}
	if err := c.Meta.validate(); err != nil {
		errs = append(errs, err)
	}
	if len(c.Keys) == 0 {
		errs = append(errs, errors.New("member: gossip has no key"))
	}
	if len(c.Keys) > maxKeys {
		errs = append(errs, fmt.Errorf("member: %d keys, at most %d", len(c.Keys), maxKeys))
	}
	for i, k := range c.Keys {
		if len(k) != keySize {
			errs = append(errs, fmt.Errorf("member: gossip key %d has %d bytes, want %d", i, len(k), keySize))
		}
	}
	for what, addr := range map[string]string{"bind": c.BindAddr, "advertise": c.AdvertiseAddr} {
		if _, err := netip.ParseAddr(addr); addr != "" && err != nil {
			errs = append(errs, fmt.Errorf("member: %s address: %w", what, err))
		}
	}
	if c.BindPort > 65535 {
		errs = append(errs, fmt.Errorf("member: port %d", c.BindPort))
	}
	if t := c.Timing; t != (Timing{}) && (t.ProbeInterval <= 0 || t.ProbeTimeout <= 0 || t.ProbeTimeout >= t.ProbeInterval ||
		t.SuspicionMult < 1 || t.SuspicionMax < 1 || t.GossipInterval <= 0 || t.PushPull <= 0 || t.Stream <= 0 || t.Reconnect <= 0) {
		errs = append(errs, errors.New("member: timing has a time that is not positive, or a probe that times out after its interval"))
	}
	return errors.Join(errs...)
}
