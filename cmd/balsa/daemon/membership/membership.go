package membership

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
)

// Record is what a machine keeps of its cluster between runs: its identity, the settings that all machines agree on, the
// servers' last addresses. It lies in the server's or the agent's directory, in member.json beside the keys.
type Record struct {
	dir string

	mu sync.Mutex
	r  *join.Result
}

// New returns the record r, which is kept in dir. It writes nothing.
func New(dir string, r *join.Result) *Record { return &Record{dir: dir, r: r} }

// Get returns a copy.
func (m *Record) Get() join.Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *m.r
}

// Update changes what is kept, and writes it when that is something new.
func (m *Record) Update(change func(*join.Result) bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := *m.r
	if !change(&next) {
		return nil
	}
	if err := next.Save(m.dir); err != nil {
		return fmt.Errorf("keep what is known of the cluster: %w", err)
	}
	m.r = &next
	return nil
}

// SetServers keeps the addresses of the servers, by ID.
func (m *Record) SetServers(addrs map[string]string) error {
	list := make([]*clusterpb.ServerAddress, 0, len(addrs))
	for _, id := range slices.Sorted(maps.Keys(addrs)) {
		list = append(list, &clusterpb.ServerAddress{ServerId: id, Address: addrs[id]})
	}
	return m.Update(func(r *join.Result) bool {
		if maps.Equal(AddressBook(r.Servers), addrs) {
			return false
		}
		r.Servers = list
		return true
	})
}

// SetGossipKeys keeps the keys of gossip; the first one encrypts.
func (m *Record) SetGossipKeys(keys [][]byte) error {
	return m.Update(func(r *join.Result) bool {
		if slices.EqualFunc(r.GossipKeys, keys, slices.Equal[[]byte]) {
			return false
		}
		r.GossipKeys = keys
		return true
	})
}

// AddressBook returns the addresses of servers by ID; servers without one are left out.
func AddressBook(list []*clusterpb.ServerAddress) map[string]string {
	book := map[string]string{}
	for _, s := range list {
		if s.Address != "" {
			book[s.ServerId] = s.Address
		}
	}
	return book
}
