package nft

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/services"
)

// Name is the name of every table this package makes.
const Name = "balsa"

// layout is the version of the sets; raise it when they come to mean something else.
const layout = 3

// ErrOwned says that a table of our name belongs to another program, which the kernel protects it for
// (NFT_TABLE_F_OWNER).
var ErrOwned = errors.New("the nftables table " + Name + " belongs to another program: end that program, or have it use another name")

// Config says what the base chains are made for.
type Config struct {
	V4 bool // the family of the table: IPv4, or else IPv6
	// Pods are the cluster's pod networks, NodePods those of this node, of the family.
	Pods, NodePods []netip.Prefix
	Bridge         string // the link pods hang on
	// Tunnel is the UDP port of the tunnel to other nodes, closed to all but members; 0: none.
	Tunnel uint16
	// Mark is the bit of the packet mark that asks for masquerading.
	Mark uint32
}

// Table is one family's table in the kernel.
type Table struct {
	cfg    Config
	socket *socket
	sets   []set
	known  bool // the kernel holds what was applied last
	others []string
}

// Open connects to the network namespace behind the file descriptor ns; 0 is that of the calling thread. Nothing is
// changed before Apply.
func Open(cfg Config, ns int) (*Table, error) {
	s, err := dial(ns)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return &Table{cfg: cfg, socket: s, sets: newSets(cfg.V4)}, nil
}

// Close disconnects; the table stays.
func (t *Table) Close() { t.socket.close() }

// Port names this Table in the kernel's messages about changes of the ruleset.
func (t *Table) Port() uint32 { return t.socket.port }

func (t *Table) family() byte {
	if t.cfg.V4 {
		return byte(nftables.TableFamilyIPv4)
	}
	return byte(nftables.TableFamilyIPv6)
}

// String is the table for people.
func (t *Table) String() string {
	if t.cfg.V4 {
		return "ip " + Name
	}
	return "ip6 " + Name
}

// fingerprint names the chain that marks a table as made from this configuration.
func (t *Table) fingerprint() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %+v", layout, t.cfg))
	return "base-" + hex.EncodeToString(sum[:8])
}

// Forget makes the next Apply look at the kernel first, because somebody else may have changed it.
func (t *Table) Forget() { t.known = false }

// Strangers are the chains in the table that others have put there. They are left alone, unless the table has to be made
// anew. Known after an Apply that looked at the kernel.
func (t *Table) Strangers() []string { return t.others }

// Apply makes the kernel hold the plan's table, changing only what differs, and returns what that was. As long as it knows
// what the kernel holds, it costs what has changed since the last time. An error leaves that unknown, and what changed is
// made up for by the next Apply.
func (t *Table) Apply(p *services.Plan) (*services.Delta, error) {
	if t.known {
		delta := p.Take()
		if delta.Empty() {
			return delta, nil
		}
		t.known = false
		if err := t.change(p.Table(), delta, false); err != nil {
			return nil, fmt.Errorf("nftables: table %s: %w", t, err)
		}
		t.known = true
		return delta, nil
	}
	stale := p.Pass()
	have, err := t.read(p.Table())
	if err != nil {
		return nil, fmt.Errorf("nftables: look at table %s: %w", t, err)
	}
	anew := have == nil
	if anew {
		have = services.NewTable()
	}
	p.Adopt(have)
	all := services.Diff(have, p.Table())
	if anew || !all.Empty() {
		if err := t.change(p.Table(), all, anew); err != nil {
			return nil, fmt.Errorf("nftables: table %s: %w", t, err)
		}
	}
	all.Stale = append(all.Stale, stale...)
	t.known = true
	return all, nil
}

// Read returns what the kernel holds; nil if that is no table made from this configuration, or not all of it.
func (t *Table) Read() (*services.Table, error) { return t.read(services.NewTable()) }

// Remove deletes the tables of both families from the namespace behind ns. It is no error if there are none.
func Remove(ns int) error {
	var errs []error
	for _, v4 := range []bool{true, false} {
		t, err := Open(Config{V4: v4}, ns)
		if err != nil {
			return err
		}
		w := t.begin()
		w.message(unix.NFT_MSG_DELTABLE, 0)
		w.text(unix.NFTA_TABLE_NAME, Name)
		if err = t.commit(w); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EAFNOSUPPORT) {
			errs = append(errs, err)
		}
		t.Close()
	}
	return errors.Join(errs...)
}
