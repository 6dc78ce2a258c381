package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/policy/plan"
)

// Name is the name of every table this package makes.
const Name = "balsa-policy"

const (
	// elementsPerMessage keeps the list in a message below the 64 KiB of an attribute.
	elementsPerMessage = 256
	// socketBuffer bounds what one transaction may take, and the kernel's answers to it; it is not taken in advance.
	socketBuffer = 64 << 20
)

// Config says what the tables are made for.
type Config struct {
	IPv6   bool   // beside IPv4
	Bridge string // the link pods hang on
}

// Tables are those of all families.
type Tables struct {
	ns     int
	conn   *nftables.Conn
	port   atomic.Uint32 // of the connection; the kernel says with each change which port asked for it
	tables []*table
}

// Open connects to the network namespace behind the file descriptor ns; 0 is that of the calling thread. Nothing is changed.
func Open(cfg Config, ns int) (*Tables, error) {
	t := &Tables{ns: ns, tables: []*table{newTable(false, cfg.Bridge)}}
	if cfg.IPv6 {
		t.tables = append(t.tables, newTable(true, cfg.Bridge))
	}
	return t, t.connect()
}

func (t *Tables) connect() error {
	conn, err := nftables.New(nftables.WithNetNSFd(t.ns), nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(t.learnPort(c), c.SetReadBuffer(socketBuffer), c.SetWriteBuffer(socketBuffer))
	}))
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	t.conn = conn
	return nil
}

func (t *Tables) learnPort(c *netlink.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var at unix.Sockaddr
	if failed := raw.Control(func(fd uintptr) { at, err = unix.Getsockname(int(fd)) }); failed != nil || err != nil {
		return errors.Join(failed, err)
	}
	if netlink, ok := at.(*unix.SockaddrNetlink); ok {
		t.port.Store(netlink.Pid)
	}
	return nil
}

// Close disconnects; the tables stay.
func (t *Tables) Close() { _ = t.conn.CloseLasting() }

// flush makes a transaction of what was added. After an error the connection is a new one: nobody knows which answers are
// still to come on the old.
func (t *Tables) flush(what string) error {
	err := t.conn.Flush()
	if err == nil {
		return nil
	}
	t.Close()
	return fmt.Errorf("nftables: %s: %w", what, errors.Join(err, t.connect()))
}

// Remove deletes the tables; it is no error if there are none.
func (t *Tables) Remove() error {
	var there bool
	for _, v6 := range []bool{false, true} {
		table := newTable(v6, "")
		exists, err := t.exists(table)
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
			return err
		}
		if exists {
			there = true
			t.conn.DelTable(table.Table)
		}
	}
	if !there {
		return nil
	}
	return t.flush("remove policies")
}

// Apply makes a change, whole or not at all.
func (t *Tables) Apply(c *plan.Change) error {
	for _, table := range t.tables {
		if err := t.add(table, c); err != nil {
			return fmt.Errorf("nftables: policies: %w", err)
		}
	}
	return t.flush("policies")
}

// add adds a change's messages: first what is new, then what leads there, then what is gone.
func (t *Tables) add(of *table, c *plan.Change) error {
	if c.Rebuild {
		if err := of.addBase(t.conn); err != nil {
			return err
		}
	}
	for _, s := range c.NewSets {
		if err := t.addSet(of, s); err != nil {
			return err
		}
	}
	for _, chain := range c.NewChains {
		into := t.conn.AddChain(&nftables.Chain{Table: of.Table, Name: chain.Name})
		for _, r := range chain.Rules {
			t.conn.AddRule(&nftables.Rule{Table: of.Table, Chain: into, Exprs: of.rule(r)})
		}
	}
	if err := t.changeElements(of, c); err != nil {
		return err
	}
	t.changeGuard(of, c)
	for _, name := range c.OldChains {
		old := &nftables.Chain{Table: of.Table, Name: name}
		t.conn.FlushChain(old)
		t.conn.DelChain(old)
	}
	for _, name := range c.OldSets {
		t.conn.DelSet(of.set(name, plan.Addresses))
	}
	return nil
}

func (t *Tables) addSet(of *table, s plan.Set) error {
	set := of.set(s.Name, s.Kind)
	if err := t.conn.AddSet(set, nil); err != nil {
		return err
	}
	elements := of.elements(s.Elements)
	if s.Kind == plan.Networks {
		elements = of.intervals(s.Ranges)
	}
	return t.each(elements, set, t.conn.SetAddElements)
}

// each hands elements over in messages of a size that the kernel takes.
func (t *Tables) each(list []nftables.SetElement, set *nftables.Set,
	do func(*nftables.Set, []nftables.SetElement) error) error {
	for part := range slices.Chunk(list, elementsPerMessage) {
		if err := do(set, part); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tables) changeElements(of *table, c *plan.Change) error {
	var errs []error
	edit := func(set *nftables.Set, remove, add []nftables.SetElement) {
		errs = append(errs, t.each(remove, set, t.conn.SetDeleteElements), t.each(add, set, t.conn.SetAddElements))
	}
	for name, list := range c.Remove {
		edit(of.set(name, plan.Addresses), of.elements(list), nil)
	}
	for name, list := range c.Add {
		edit(of.set(name, plan.Addresses), nil, of.elements(list))
	}
	for d, name := range verdictMaps {
		m := of.set(name, plan.Addresses)
		m.IsMap = true
		edit(m, of.verdicts(c.Unjudge[d]), of.verdicts(c.Judge[d]))
	}
	edit(of.set(selfSet, plan.Addresses), of.addresses(c.RemoveSelf, true), of.addresses(c.AddSelf, true))
	edit(of.set(knownSet, plan.Addresses), of.addresses(c.RemoveKnown, false), of.addresses(c.AddKnown, false))
	return errors.Join(errs...)
}

func (t *Tables) changeGuard(of *table, c *plan.Change) {
	if c.Guard == nil {
		return
	}
	for name, exprs := range of.guard() {
		chain := &nftables.Chain{Table: of.Table, Name: name}
		t.conn.FlushChain(chain)
		if *c.Guard {
			t.conn.AddRule(&nftables.Rule{Table: of.Table, Chain: chain, Exprs: exprs})
		}
	}
}

// ofFamily tells whether an address belongs into the table.
func (t *table) ofFamily(a netip.Addr) bool { return a.Is6() == t.v6 }

// portKey is laid out as the kernel does concatenations: every part padded to four bytes.
func portKey(key []byte, protocol plan.Protocol, ports ...uint16) []byte {
	key = append(key, byte(protocol), 0, 0, 0)
	for _, p := range ports {
		key = append(binary.BigEndian.AppendUint16(key, p), 0, 0)
	}
	return key
}

func (t *table) elements(list []plan.Element) []nftables.SetElement {
	var out []nftables.SetElement
	for _, e := range list {
		if !t.ofFamily(e.Address) {
			continue
		}
		key := e.Address.AsSlice()
		if e.Protocol != 0 {
			key = portKey(key, e.Protocol, e.Port)
		}
		out = append(out, nftables.SetElement{Key: key})
	}
	return out
}

func (t *table) addresses(list []netip.Addr, twice bool) []nftables.SetElement {
	var out []nftables.SetElement
	for _, a := range list {
		if !t.ofFamily(a) {
			continue
		}
		key := a.AsSlice()
		if twice {
			key = append(key, key...)
		}
		out = append(out, nftables.SetElement{Key: key})
	}
	return out
}

func (t *table) verdicts(of map[netip.Addr]string) []nftables.SetElement {
	var out []nftables.SetElement
	for a, chain := range of {
		if t.ofFamily(a) {
			out = append(out, nftables.SetElement{
				Key: a.AsSlice(), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain},
			})
		}
	}
	return out
}

// intervals: each begins at its first address and ends before the one after its last. The last of all addresses has none
// after it, and so no end.
func (t *table) intervals(list []plan.Range) []nftables.SetElement {
	var out []nftables.SetElement
	for _, r := range list {
		if !t.ofFamily(r.From) {
			continue
		}
		out = append(out, nftables.SetElement{Key: r.From.AsSlice()})
		if after := r.To.Next(); after.IsValid() {
			out = append(out, nftables.SetElement{Key: after.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}
