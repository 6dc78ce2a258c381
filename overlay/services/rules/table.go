package rules

import (
	"fmt"
	"net/netip"

	"github.com/balsahq/balsa/overlay/nft"
	"github.com/balsahq/balsa/overlay/services"
)

// Name is the name of every table this package makes.
const Name = "balsa"

// layoutVersion is the version of the sets and base chains; raise it when their names or meaning change.
const layoutVersion = 5

// Config is the input of the base chains. It is part of the fingerprint.
type Config struct {
	V4 bool // the family of the table: IPv4, else IPv6
	// Pods are the cluster's pod networks, NodePods those of this node, of the family.
	Pods, NodePods []netip.Prefix
	Bridge         string // the link that pods are attached to
	// Tunnel is the UDP port of the tunnel to other nodes, closed to all but members; 0: none.
	Tunnel uint16
	// VXLAN: the kernel unpacks the tunnel's packets, so the rules look at the sources inside. A process that unpacks them
	// (modes UDP and WireGuard) does so itself.
	VXLAN bool
	// Mark is the bit of the packet mark that asks for masquerading.
	Mark uint32
}

// Table is one family's table in the kernel.
type Table struct {
	layout *layout
	conn   *nft.Conn
	known  bool     // the kernel holds the plan that was applied last, unless another program changed it unnoticed
	others []string // chains of other programs
}

// Open connects to the network namespace behind the file descriptor ns; 0 is the namespace of the calling thread. Nothing
// is changed before Apply.
func Open(cfg Config, ns int) (*Table, error) {
	conn, err := nft.Dial(ns)
	if err != nil {
		return nil, err
	}
	return &Table{layout: newLayout(cfg), conn: conn}, nil
}

// Close disconnects; the table stays.
func (t *Table) Close() { t.conn.Close() }

// Port names this Table in the kernel's messages about changes of the ruleset.
func (t *Table) Port() uint32 { return t.conn.Port() }

// String is the table as the nft command names it.
func (t *Table) String() string { return t.layout.table.String() }

// Forget makes the next Apply read the kernel first, because another program may have changed the table.
func (t *Table) Forget() { t.known = false }

// ForeignChains are the chains that other programs have put into the table, as the last Apply that read the kernel found
// them. They stay until the table has to be made anew.
func (t *Table) ForeignChains() []string { return t.others }

// Apply makes the kernel hold the plan's table. It changes only what differs, and returns that. As long as it knows what the
// kernel holds, it costs what has changed since the last time. After an error the next Apply reads the kernel first.
func (t *Table) Apply(p *services.Plan) (*services.Delta, error) {
	if t.known {
		delta := p.TakeDelta()
		if delta.Empty() {
			return delta, nil
		}
		t.known = false
		if err := t.write(t.layout.change(p.Table(), delta)); err != nil {
			return nil, err
		}
		t.known = true
		return delta, nil
	}
	stale := p.TakeStale()
	have, err := t.read(p.Table())
	if err != nil {
		return nil, fmt.Errorf("nftables: read table %s: %w", t, err)
	}
	change := t.layout.change
	if have == nil {
		have, change = services.NewTable(), t.layout.rebuild
	}
	p.AdoptNumbers(have)
	all := services.Diff(have, p.Table())
	if err := t.write(change(p.Table(), all)); err != nil {
		return nil, err
	}
	all.Stale = append(all.Stale, stale...)
	t.known = true
	return all, nil
}

// write carries out a change.
func (t *Table) write(c *nft.Change) error {
	if err := t.conn.ApplyInParts(c); err != nil {
		return fmt.Errorf("nftables: table %s: %w", t, err)
	}
	return nil
}

// Remove deletes the tables of both families from the namespace behind ns. It is no error if there are none.
func Remove(ns int) error {
	conn, err := nft.Dial(ns)
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.DeleteTables(Name)
}
