package mvcc

import (
	"fmt"
	"slices"

	"github.com/tidwall/btree"

	"github.com/balsahq/balsa/raftstore/errdefs"
)

// State is the replicated state: a pure function of the commands applied to it. It has no clock, no randomness and does no I/O, so every
// peer that applies the same commands holds the same bytes. One goroutine owns it; readers get roots from Capture.
type State struct {
	tree     *tree // not shared with readers: they get copies
	Rev      int64
	Bytes    int64 // size of the live keys, roughly
	hist     History
	leases   *btree.Map[LeaseID, int64]      // TTL in milliseconds
	attached map[LeaseID]map[string]struct{} // keys under each lease
}

// Root is the state after an entry, immutable.
type Root struct {
	Index  uint64 // the last entry in it
	Term   uint64 // the term of that entry
	View   *View
	Hist   History
	Leases *btree.Map[LeaseID, int64]
}

// FirstRevision is the revision of an empty store, as in etcd: the first write makes revision 2.
const FirstRevision = 1

// NewState returns an empty state.
func NewState() *State {
	return &State{
		tree:     new(tree),
		Rev:      FirstRevision,
		hist:     History{marks: []mark{{rev: FirstRevision, tree: new(tree)}}},
		leases:   new(btree.Map[LeaseID, int64]),
		attached: make(map[LeaseID]map[string]struct{}),
	}
}

// Applied is the effect of a command, for its proposer.
type Applied struct {
	Txn *TxnResult
	Err error
}

// Apply makes the change that c describes. With an error it changes nothing.
func (s *State) Apply(c *Command) Applied {
	switch c.Kind {
	case KindTxn:
		res, err := s.applyTxn(&c.Txn, c.Raw)
		return Applied{Txn: res, Err: err}
	case KindLeaseGrant:
		return Applied{Err: s.grant(c.Lease, c.TTL)}
	case KindLeaseRevoke:
		return Applied{Err: s.revoke(c.Lease)}
	case KindCompact:
		return Applied{Err: s.hist.compact(c.Revision, s.view())}
	case KindTerm:
		return Applied{}
	}
	return Applied{Err: fmt.Errorf("%w: log entry has kind %d", errdefs.ErrNewerVersion, c.Kind)}
}

// view returns the state as it is now.
func (s *State) view() *View { return &View{tree: s.tree.Copy(), Rev: s.Rev} }

// Capture returns the state as it is now, in constant time.
func (s *State) Capture() *Root {
	v := s.view()
	s.hist.remember(v)
	return &Root{View: v, Hist: s.hist, Leases: s.leases.Copy()}
}

func (s *State) grant(id LeaseID, ttl int64) error {
	if _, ok := s.leases.Get(id); ok {
		return fmt.Errorf("%w: %x", errdefs.ErrLeaseExists, int64(id))
	}
	s.leases.Set(id, ttl)
	return nil
}

// revoke removes a lease and, in one revision, the keys that live under it.
func (s *State) revoke(id LeaseID) error {
	if _, ok := s.leases.Delete(id); !ok {
		return fmt.Errorf("%w: %x", errdefs.ErrLeaseNotFound, int64(id))
	}
	keys := make([]string, 0, len(s.attached[id]))
	for k := range s.attached[id] {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		kv, _ := s.tree.Get(k)
		s.delete(kv, s.Rev+1)
	}
	if len(keys) > 0 {
		s.Rev++
	}
	return nil
}

// put writes kv as the newest version of its key and returns the version before, nil if there was none.
func (s *State) put(kv *KeyValue) (prev *KeyValue) {
	prev, _ = s.tree.Get(kv.Key)
	kv.CreateRevision, kv.Version = kv.ModRevision, 1
	if prev != nil {
		kv.Key = prev.Key
		kv.CreateRevision, kv.Version = prev.CreateRevision, prev.Version+1
	}
	s.tree.Set(kv.Key, kv)
	s.Bytes += kv.size() - prev.size()
	s.hist.append(Event{Type: EventPut, KV: kv, Prev: prev})
	if prev != nil && prev.Lease != kv.Lease {
		s.detach(prev)
	}
	s.attach(kv)
	return prev
}

// delete removes the key whose newest version is kv.
func (s *State) delete(kv *KeyValue, rev int64) {
	s.tree.Delete(kv.Key)
	s.Bytes -= kv.size()
	s.hist.append(Event{Type: EventDelete, KV: &KeyValue{Key: kv.Key, ModRevision: rev}, Prev: kv})
	s.detach(kv)
}

// Keep replaces the keys under prefix by the keys that now has there, with their leases. The state must not be shared with readers
// yet.
func (s *State) Keep(prefix string, now *Root) {
	end := PrefixEnd(prefix)
	var old []*KeyValue
	ascend(s.tree, prefix, end, func(kv *KeyValue) bool {
		old = append(old, kv)
		return true
	})
	for _, kv := range old {
		s.tree.Delete(kv.Key)
		s.Bytes -= kv.size()
		s.detach(kv)
	}
	now.View.Ascend(prefix, end, func(kv *KeyValue) bool {
		if kv.Lease != 0 {
			if ttl, ok := now.Leases.Get(kv.Lease); ok {
				s.leases.Set(kv.Lease, ttl)
			}
		}
		s.tree.Set(kv.Key, kv)
		s.Bytes += kv.size()
		s.attach(kv)
		return true
	})
}

func (s *State) attach(kv *KeyValue) {
	if kv.Lease == 0 {
		return
	}
	keys := s.attached[kv.Lease]
	if keys == nil {
		keys = make(map[string]struct{})
		s.attached[kv.Lease] = keys
	}
	keys[kv.Key] = struct{}{}
}

func (s *State) detach(kv *KeyValue) {
	if kv.Lease == 0 {
		return
	}
	keys := s.attached[kv.Lease]
	delete(keys, kv.Key)
	if len(keys) == 0 {
		delete(s.attached, kv.Lease)
	}
}
