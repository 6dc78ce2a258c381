package lan

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Cut drops all packets between two machines.
func (n *Network) Cut(a, b *Machine) error {
	return n.change(func() { n.cut[wire{a.port, b.port}], n.cut[wire{b.port, a.port}] = true, true })
}

// CutOneWay drops the packets of one direction; the other direction works.
func (n *Network) CutOneWay(from, to *Machine) error {
	return n.change(func() { n.cut[wire{from.port, to.port}] = true })
}

// Isolate cuts a machine off from the others; the client still reaches it.
func (n *Network) Isolate(m *Machine) error {
	return n.change(func() {
		for _, o := range n.Machines {
			if o != m {
				n.cut[wire{m.port, o.port}], n.cut[wire{o.port, m.port}] = true, true
			}
		}
	})
}

// Unplug cuts a machine off from all others, including the client.
func (n *Network) Unplug(m *Machine) error {
	return errors.Join(n.Isolate(m), n.Cut(m, n.Client))
}

// Heal removes all cuts. Slow links stay slow.
func (n *Network) Heal() error { return n.change(func() { clear(n.cut) }) }

// change changes the set of cuts and gives it to the kernel in one transaction.
func (n *Network) change(alter func()) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	alter()
	conn, err := nftables.New(nftables.WithNetNSFd(int(n.sw)))
	if err != nil {
		return err
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyBridge, Name: "cut"})
	conn.FlushTable(table)
	chain := conn.AddChain(&nftables.Chain{
		Name: "forward", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	machines := n.all()
	for w := range n.cut {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: linkName(machines[w.from].portName())},
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: linkName(machines[w.to].portName())},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}})
	}
	n.cutRouted(conn)
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("set the cuts: %w", err)
	}
	return nil
}

// cutRouted drops packets between subnets, which the bridges do not see.
func (n *Network) cutRouted(conn *nftables.Conn) {
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "cut"})
	conn.FlushTable(table)
	chain := conn.AddChain(&nftables.Chain{
		Name: "forward", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	const source, destination, size = 12, 16, 4 // offsets and size in the IPv4 header
	machines := n.all()
	for w := range n.cut {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: source, Len: size},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: machines[w.from].Addr.AsSlice()},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: destination, Len: size},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: machines[w.to].Addr.AsSlice()},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}})
	}
}

// linkName returns a name as the kernel compares it.
func linkName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

// Link describes a slow link: bits a second, and how many bytes may be queued before packets are dropped.
type Link struct {
	BitsPerSecond uint64
	Queue         uint32
}

const burst = 4096 // bytes that pass without delay: a few Ethernet frames

// Slow limits the packets from and to the machine; a zero Link removes the limit.
func (n *Network) Slow(m *Machine, l Link) error {
	sw, err := netlink.NewHandleAt(n.sw)
	if err != nil {
		return err
	}
	defer sw.Close()
	port, err := sw.LinkByName(m.portName())
	if err != nil {
		return err
	}
	return errors.Join(shape(sw, port, l), m.inside(func(h *netlink.Handle, eth netlink.Link) error { return shape(h, eth, l) }))
}

func shape(h *netlink.Handle, link netlink.Link, l Link) error {
	attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	if l.BitsPerSecond == 0 {
		err := h.QdiscDel(&netlink.Tbf{QdiscAttrs: attrs})
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
			return nil // the link was not slow
		}
		return err
	}
	rate := l.BitsPerSecond / 8
	return h.QdiscReplace(&netlink.Tbf{QdiscAttrs: attrs, Rate: rate, Limit: l.Queue + burst, Buffer: netlink.Xmittime(rate, burst)})
}
