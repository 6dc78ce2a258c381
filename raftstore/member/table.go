package member

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// State is the state of a member as this one sees it.
type State string

const (
	StateAlive State = "alive"
	// StateFailed: the member stopped answering.
	StateFailed State = "failed"
	// StateLeft: the member announced that it leaves; Meta.Leaving is whether it comes back.
	StateLeft State = "left"
)

// Member is a copy of what is known of a member.
type Member struct {
	Meta
	// Addr is the ip:port at which the member gossips.
	Addr  string
	State State
	// Since is when this process saw State change.
	Since time.Time
}

// maxMembers bounds the table, because a holder of the key can invent members.
const maxMembers = 1 << 14

// maxRemembered bounds the addresses that Remember keeps.
const maxRemembered = 1 << 10

// table holds the known members, and addresses from other sources.
type table struct {
	now func() time.Time

	mu         sync.Mutex
	members    map[string]Member // by ServerID
	remembered map[string]string // ServerID to API address
	changed    chan struct{}
}

func newTable() *table {
	return &table{now: time.Now, members: map[string]Member{}, remembered: map[string]string{}, changed: make(chan struct{})}
}

func (t *table) bump() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// admit returns why a member that announces itself as alive is not accepted, nil when it is.
func (t *table) admit(m Meta, addr string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	known, ok := t.members[m.ServerID]
	if !ok && len(t.members) >= maxMembers {
		return fmt.Errorf("%d members are known, no more are accepted", maxMembers)
	}
	if ok && known.State == StateAlive && known.Name != m.Name {
		return fmt.Errorf("%w: %s is alive as %s at %s", ErrNameTaken, m.ServerID, known.Name, known.Addr)
	}
	for id, other := range t.members {
		// At one address there is one process: a member with this name and this address is gone.
		if id != m.ServerID && other.Name == m.Name && other.State == StateAlive && other.Addr != addr {
			return fmt.Errorf("%w: %s is alive as %s at %s", ErrNameTaken, m.Name, other.ServerID, other.Addr)
		}
	}
	return nil
}

// alive records that a member is alive. Another live member with its name counts as failed.
func (t *table) alive(m Meta, addr string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, id := t.now(), m.ServerID
	for otherID, other := range t.members {
		if otherID != id && other.Name == m.Name && other.State == StateAlive {
			other.State, other.Since = StateFailed, now
			t.members[otherID] = other
		}
	}
	old, ok := t.members[id]
	since := old.Since
	if !ok || old.State != StateAlive {
		since = now
	}
	t.members[id] = Member{Meta: m, Addr: addr, State: StateAlive, Since: since}
	t.bump()
}

// gone records that the live member of this name left or failed, and returns it.
func (t *table) gone(name string) (Member, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, m := range t.members {
		if m.Name != name || m.State != StateAlive {
			continue
		}
		m.State, m.Since = StateFailed, t.now()
		if m.Leaving != Staying {
			m.State = StateLeft
		}
		t.members[id] = m
		t.bump()
		return m, true
	}
	return Member{}, false
}

// forget removes a member that is not alive, by ServerID or name.
func (t *table) forget(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.remembered, id)
	for key, m := range t.members {
		if (m.ServerID == id || m.Name == id) && m.State != StateAlive {
			delete(t.members, key)
			t.bump()
			return true
		}
	}
	return false
}

func (t *table) list() []Member {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := slices.Collect(maps.Values(t.members))
	slices.SortFunc(out, func(a, b Member) int {
		return cmp.Or(cmp.Compare(b.Role, a.Role), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ServerID, b.ServerID))
	})
	return out
}

func (t *table) watch() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// resolve returns the API address of a server.
func (t *table) resolve(serverID string) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m, ok := t.members[serverID]; ok && m.APIAddr != "" {
		return m.APIAddr, true
	}
	addr, ok := t.remembered[serverID]
	return addr, ok
}

func (t *table) remember(addrs map[string]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, addr := range addrs {
		if _, known := t.remembered[id]; known || len(t.remembered) < maxRemembered {
			t.remembered[id] = addr
		}
	}
}

// others returns how many members besides name are alive, and the addresses of those that failed.
func (t *table) others(name string) (alive int, failed []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.members {
		switch {
		case m.Name == name:
		case m.State == StateAlive:
			alive++
		case m.State == StateFailed:
			failed = append(failed, m.Addr)
		}
	}
	slices.Sort(failed)
	return alive, failed
}
