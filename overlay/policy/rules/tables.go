package rules

import (
	"context"
	"fmt"

	"github.com/balsahq/balsa/overlay/nft"
	"github.com/balsahq/balsa/overlay/policy/plan"
)

// Name is the name of every table this package makes.
const Name = "balsa-policy"

// Config is the input of the tables.
type Config struct {
	IPv6   bool   // a table for IPv6 beside the table for IPv4
	Bridge string // the link that pods are attached to
}

// Tables are the tables of all families in the kernel.
type Tables struct {
	ns      int
	conn    *nft.Conn
	layouts []*layout
}

// Open connects to the network namespace behind the file descriptor ns; 0 is the namespace of the calling thread. Nothing
// is changed before Apply.
func Open(cfg Config, ns int) (*Tables, error) {
	conn, err := nft.Dial(ns)
	if err != nil {
		return nil, err
	}
	t := &Tables{ns: ns, conn: conn, layouts: []*layout{newLayout(nft.IPv4, cfg.Bridge)}}
	if cfg.IPv6 {
		t.layouts = append(t.layouts, newLayout(nft.IPv6, cfg.Bridge))
	}
	return t, nil
}

// Close disconnects; the tables stay.
func (t *Tables) Close() { t.conn.Close() }

// Apply applies a change to all families in one transaction.
func (t *Tables) Apply(c *plan.Change) error {
	var change nft.Change
	for _, l := range t.layouts {
		l.addTo(&change, c)
	}
	return t.apply(&change, "policies")
}

// apply carries out a change; what names it in the error.
func (t *Tables) apply(change *nft.Change, what string) error {
	if err := t.conn.Apply(change); err != nil {
		return fmt.Errorf("nftables: %s: %w", what, err)
	}
	return nil
}

// Watch calls changed, from one goroutine, when another program changes the tables, until ctx ends.
func (t *Tables) Watch(ctx context.Context, changed func(nft.Foreign)) error {
	own := t.conn.Port()
	return nft.Watch(ctx, nft.WatchConfig{
		NS: t.ns, Table: Name, Own: func(port uint32) bool { return port == own }, Changed: changed,
	})
}

// Remove deletes the tables of both families; it is no error if there are none.
func (t *Tables) Remove() error {
	if err := t.conn.DeleteTables(Name); err != nil {
		return fmt.Errorf("nftables: remove policies: %w", err)
	}
	return nil
}

// Remove deletes the tables from the namespace behind ns. It is no error if there are none.
func Remove(ns int) error {
	t, err := Open(Config{}, ns)
	if err != nil {
		return err
	}
	defer t.Close()
	return t.Remove()
}
