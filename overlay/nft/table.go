package nft

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/routing"
)

// Name is the name of every table this package makes.
const Name = "balsa"

// layout is the version of the base chains; raise it when they change.
const layout = 2

// Config says what the base chains are made for.
type Config struct {
	V4 bool // the family of the table: IPv4, or else IPv6
	// Pods are the cluster's pod networks, NodePods those of this node, Services the service networks.
	Pods, NodePods, Services []netip.Prefix
	Bridge                   string // the link pods hang on
	// Tunnel is the UDP port of the tunnel to other nodes, closed to all but members; 0: none.
	Tunnel uint16
	// Mark is the bit of the packet mark that asks for masquerading.
	Mark uint32
}

// Table is one family's table in the kernel.
type Table struct {
	cfg     Config
	conn    *nftables.Conn
	table   *nftables.Table
	sets    sets
	applied *routing.Table // what is in the kernel; nil: unknown
}

// Open connects to the network namespace behind the file descriptor ns; 0 is that of the calling thread. Nothing is
// changed before Apply.
func Open(cfg Config, ns int) (*Table, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(ns))
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	t := &Table{cfg: cfg, conn: conn}
	t.table = &nftables.Table{Name: Name, Family: t.family()}
	t.sets = newSets(t.table, cfg.V4)
	return t, nil
}

func (t *Table) family() nftables.TableFamily {
	if t.cfg.V4 {
		return nftables.TableFamilyIPv4
	}
	return nftables.TableFamilyIPv6
}

// fingerprint names the chain that marks a table as made from this configuration.
func (t *Table) fingerprint() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %+v", layout, t.cfg))
	return "base-" + hex.EncodeToString(sum[:8])
}

// Forget makes the next Apply look at the kernel first, because somebody else may have changed it.
func (t *Table) Forget() { t.applied = nil }

// Applied is what the last Apply left in the kernel; nil before the first.
func (t *Table) Applied() *routing.Table { return t.applied }

// Apply makes the kernel hold the table, changing only what differs.
func (t *Table) Apply(want *routing.Table) error {
	if t.applied == nil {
		have, err := t.read()
		if err != nil {
			return err
		}
		if have == nil {
			if err := t.makeBase(); err != nil {
				return fmt.Errorf("nftables: base chains: %w", err)
			}
			have = routing.NewTable()
		}
		t.applied = have
	}
	if err := t.change(t.applied, want); err != nil {
		t.applied = nil
		return fmt.Errorf("nftables: services: %w", err)
	}
	t.applied = want
	return nil
}

// Rebuild throws the table away and makes it anew in the same transaction as its base.
func (t *Table) Rebuild(want *routing.Table) error {
	if err := t.makeBase(); err != nil {
		return fmt.Errorf("nftables: base chains: %w", err)
	}
	t.applied = routing.NewTable()
	return t.Apply(want)
}

// Remove deletes the tables of both families from the namespace behind ns. It is no error if there are none.
func Remove(ns int) error {
	var errs []error
	for _, v4 := range []bool{true, false} {
		t, err := Open(Config{V4: v4}, ns)
		if err != nil {
			return err
		}
		exists, err := t.exists()
		if err == nil && exists {
			t.conn.DelTable(t.table)
			err = t.conn.Flush()
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EAFNOSUPPORT) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (t *Table) exists() (bool, error) {
	tables, err := t.conn.ListTablesOfFamily(t.family())
	if err != nil {
		return false, err
	}
	for _, other := range tables {
		if other.Name == Name {
			return true, nil
		}
	}
	return false, nil
}
