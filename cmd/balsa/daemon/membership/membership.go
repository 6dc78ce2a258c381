package membership

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
)

// Record is the content of member.json. Its methods may be called from several goroutines.
type Record struct {
	dir string

	mu sync.Mutex
	r  *join.Result
}

// New returns a Record of r, whose changes are saved in dir. It writes nothing itself.
func New(dir string, r *join.Result) *Record { return &Record{dir: dir, r: r} }

// Get returns a copy; its slices are shared and must not be changed.
func (m *Record) Get() join.Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *m.r
}

// Update calls change with a copy of the record. When change returns true, the copy is saved and replaces the record.
func (m *Record) Update(change func(*join.Result) bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := *m.r
	if !change(&next) {
		return nil
	}
	if err := next.Save(m.dir); err != nil {
		return fmt.Errorf("cannot save what is known of the cluster: %w", err)
	}
	m.r = &next
	return nil
}

// SetServers saves the addresses of the servers, by server ID, unless they are the same as before.
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

// SetGossipKeys saves the keys of gossip, unless they are the same as before. The first key encrypts.
func (m *Record) SetGossipKeys(keys [][]byte) error {
	return m.Update(func(r *join.Result) bool {
		if slices.EqualFunc(r.GossipKeys, keys, slices.Equal[[]byte]) {
			return false
		}
		r.GossipKeys = keys
		return true
	})
}

// AddressBook returns the servers' addresses by server ID, without servers that have none.
func AddressBook(list []*clusterpb.ServerAddress) map[string]string {
	book := map[string]string{}
	for _, s := range list {
		if s.Address != "" {
			book[s.ServerId] = s.Address
		}
	}
	return book
}
