package member

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/hashicorp/memberlist"

	"github.com/balsahq/balsa/fault"
)

// delegate is what memberlist calls back. Alive, events and conflicts come with
// memberlist's node lock held: nothing here calls memberlist.
type delegate struct{ *Gossip }

// unit is the unit under which panics of gossip are counted.
const unit = "gossip"

// NodeMeta implements memberlist.Delegate.
func (d delegate) NodeMeta(limit int) []byte {
	raw := *d.meta.Load()
	if len(raw) > limit { // MaxMeta is memberlist's limit
		return nil
	}
	return raw
}

// NotifyMsg implements memberlist.Delegate. Members send no messages of their own.
func (d delegate) NotifyMsg([]byte) {}

// GetBroadcasts implements memberlist.Delegate.
func (d delegate) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (d delegate) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (d delegate) MergeRemoteState([]byte, bool) {}

func metaOf(n *memberlist.Node) (Meta, error) {
	m, err := DecodeMeta(n.Meta)
	m.Name = n.Name
	if err == nil && (n.Name == "" || len(n.Name) > 253 || !printable(n.Name)) {
		err = fmt.Errorf("%w: name %q", ErrMeta, n.Name)
	}
	return m, err
}

var errForeign = errors.New("member: of another cluster")

// NotifyAlive implements memberlist.AliveDelegate: an error makes memberlist
// ignore the announcement.
func (d delegate) NotifyAlive(n *memberlist.Node) error {
	return fault.Contain(unit, func() error {
		fault.Point("member/alive")
		return d.admit(n)
	})
}

func (d delegate) admit(n *memberlist.Node) error {
	m, err := metaOf(n)
	if err == nil && m.ClusterID != d.cfg.Meta.ClusterID {
		err = errForeign
	}
	addr := hostPort(n.Addr, n.Port)
	if err == nil {
		err = d.table.admit(m, addr)
	}
	if err != nil {
		d.log.once(slog.LevelWarn, "alive\x00"+n.Name+"\x00"+addr, "gossip: refused a member", "name", n.Name, "addr", addr, "err", err)
	}
	return err
}

// NotifyJoin implements memberlist.EventDelegate.
func (d delegate) NotifyJoin(n *memberlist.Node) {
	_ = fault.Do(unit, func() { d.record(n, "gossip: member is alive") })
}

// NotifyUpdate implements memberlist.EventDelegate.
func (d delegate) NotifyUpdate(n *memberlist.Node) {
	_ = fault.Do(unit, func() { d.record(n, "gossip: member changed") })
}

func (d delegate) record(n *memberlist.Node, what string) {
	m, err := metaOf(n)
	if err != nil { // cannot happen: NotifyAlive has accepted the member
		return
	}
	addr := hostPort(n.Addr, n.Port)
	d.table.alive(m, addr)
	if n.Name != d.cfg.Name {
		d.log.to.Info(what, "name", m.Name, "role", m.Role, "addr", addr)
	}
}

// NotifyLeave implements memberlist.EventDelegate. memberlist does not say
// whether a member failed or left; the member's last Meta does.
func (d delegate) NotifyLeave(n *memberlist.Node) {
	_ = fault.Do(unit, func() {
		if m, ok := d.table.gone(n.Name); ok && n.Name != d.cfg.Name {
			d.log.to.Info("gossip: member is "+string(m.State), "name", m.Name, "role", m.Role, "addr", m.Addr)
		}
	})
}

// NotifyConflict implements memberlist.ConflictDelegate: a member with the name and the ServerID of a live one announces another address.
// The address is accepted when the live one turns out to be dead.
func (d delegate) NotifyConflict(existing, other *memberlist.Node) {
	d.log.once(slog.LevelInfo, "conflict\x00"+other.Name, "gossip: member announces another address; its old one is being checked",
		"name", other.Name, "alive", hostPort(existing.Addr, existing.Port), "announced", hostPort(other.Addr, other.Port))
}

// NotifyMerge implements memberlist.MergeDelegate: a member that this one joins, or that joins this one, sends its table. An error refuses
// the table.
func (d delegate) NotifyMerge(nodes []*memberlist.Node) error {
	return fault.Contain(unit, func() error { return d.merge(nodes) })
}

func (d delegate) merge(nodes []*memberlist.Node) error {
	own, disputed := d.Addr(), false
	if own == "" { // Run does not listen yet
		return nil
	}
	for _, n := range nodes {
		m, err := metaOf(n)
		if err != nil || n.State != memberlist.StateAlive && n.State != memberlist.StateSuspect {
			continue // NotifyAlive refuses this member only
		}
		if m.ClusterID != d.cfg.Meta.ClusterID {
			return errForeign
		}
		mine := m.ServerID == d.cfg.Meta.ServerID
		if n.Name != d.cfg.Name && !mine {
			continue
		}
		addr := hostPort(n.Addr, n.Port)
		if mine && n.Name == d.cfg.Name && addr == own {
			d.seat.confirm()
			continue
		}
		disputed = true
		if d.seat.dispute(n.Name, addr, len(nodes)) && addr != own && !(mine && n.Name == d.cfg.Name) {
			return fmt.Errorf("%w: %s is alive at %s", ErrNameTaken, n.Name, addr)
		}
	}
	if !disputed {
		d.seat.undisputed()
	}
	return nil
}
