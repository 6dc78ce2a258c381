package raftstore

import (
	"fmt"
	"slices"

	"github.com/tidwall/btree"
)

// state is the replicated state: a pure function of the log entries applied to
// it. It has no clock, no randomness and does no I/O, so every peer that
// applies the same entries holds the same bytes. One goroutine owns it; readers
// get roots from capture.
type state struct {
	tree     *tree // never published itself, only copies of it
	rev      int64
	bytes    int64 // of the live keys, roughly
	hist     history
	leases   *btree.Map[LeaseID, int64] // TTL in milliseconds
	attached map[LeaseID]map[string]struct{}
}

// root is the state as it was after some entry, immutable.
type root struct {
	index  uint64 // of the last entry in it
	term   uint64 // of that entry
	view   *View
	hist   history
	leases *btree.Map[LeaseID, int64]
}

// firstRevision is the revision of an empty store, as in etcd: the first write
// makes revision 2.
const firstRevision = 1

func newState() *state {
	return &state{
		tree:     new(tree),
		rev:      firstRevision,
		hist:     history{marks: []mark{{rev: firstRevision, tree: new(tree)}}},
		leases:   new(btree.Map[LeaseID, int64]),
		attached: make(map[LeaseID]map[string]struct{}),
	}
}

// applied is what an entry gave to the one who proposed it.
type applied struct {
	txn *TxnResult
	err error
}

// apply makes the change c describes.
func (s *state) apply(c *command) applied {
	switch c.kind {
	case cmdTxn:
		res, err := s.applyTxn(&c.txn, c.raw)
		return applied{txn: res, err: err}
	case cmdLeaseGrant:
		return applied{err: s.grant(c.lease, c.ttl)}
	case cmdLeaseRevoke:
		return applied{err: s.revoke(c.lease)}
	case cmdCompact:
		return applied{err: s.hist.compact(c.revision, s.view())}
	case cmdTerm:
		return applied{}
	}
	return applied{err: fmt.Errorf("%w: log entry has kind %d", ErrNewerVersion, c.kind)}
}

// view is the state as it is now.
func (s *state) view() *View { return &View{tree: s.tree.Copy(), rev: s.rev} }

// capture returns the state as it is now, in constant time.
func (s *state) capture() *root {
	v := s.view()
	s.hist.remember(v)
	return &root{view: v, hist: s.hist, leases: s.leases.Copy()}
}

func (s *state) grant(id LeaseID, ttl int64) error {
	if _, ok := s.leases.Get(id); ok {
		return fmt.Errorf("%w: %x", ErrLeaseExists, int64(id))
	}
	s.leases.Set(id, ttl)
	return nil
}

// revoke removes a lease and, in one revision, the keys that live under it.
func (s *state) revoke(id LeaseID) error {
	if _, ok := s.leases.Delete(id); !ok {
		return fmt.Errorf("%w: %x", ErrLeaseNotFound, int64(id))
	}
	keys := make([]string, 0, len(s.attached[id]))
	for k := range s.attached[id] {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		kv, _ := s.tree.Get(k)
		s.delete(kv, s.rev+1)
	}
	if len(keys) > 0 {
		s.rev++
	}
	return nil
}

// put writes a version of key at revision rev.
func (s *state) put(kv *KeyValue) (prev *KeyValue) {
	prev, _ = s.tree.Get(kv.Key)
	kv.CreateRevision, kv.Version = kv.ModRevision, 1
	if prev != nil {
		kv.Key = prev.Key
		kv.CreateRevision, kv.Version = prev.CreateRevision, prev.Version+1
	}
	s.tree.Set(kv.Key, kv)
	s.bytes += kv.size() - prev.size()
	s.hist.append(Event{Type: EventPut, KV: kv, Prev: prev})
	if prev != nil && prev.Lease != kv.Lease {
		s.detach(prev)
	}
	s.attach(kv)
	return prev
}

// delete removes the key whose newest version is kv.
func (s *state) delete(kv *KeyValue, rev int64) {
	s.tree.Delete(kv.Key)
	s.bytes -= kv.size()
	s.hist.append(Event{Type: EventDelete, KV: &KeyValue{Key: kv.Key, ModRevision: rev}, Prev: kv})
	s.detach(kv)
}

// keep makes the keys under prefix those of now, with their leases. It is for a
// state that nobody reads yet.
func (s *state) keep(prefix string, now *root) {
	end := PrefixEnd(prefix)
	var old []*KeyValue
	ascend(s.tree, prefix, end, func(kv *KeyValue) bool {
		old = append(old, kv)
		return true
	})
	for _, kv := range old {
		s.tree.Delete(kv.Key)
		s.bytes -= kv.size()
		s.detach(kv)
	}
	now.view.Ascend(prefix, end, func(kv *KeyValue) bool {
		if kv.Lease != 0 {
			if ttl, ok := now.leases.Get(kv.Lease); ok {
				s.leases.Set(kv.Lease, ttl)
			}
		}
		s.tree.Set(kv.Key, kv)
		s.bytes += kv.size()
		s.attach(kv)
		return true
	})
}

func (s *state) attach(kv *KeyValue) {
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

func (s *state) detach(kv *KeyValue) {
	if kv.Lease == 0 {
		return
	}
	keys := s.attached[kv.Lease]
	delete(keys, kv.Key)
	if len(keys) == 0 {
		delete(s.attached, kv.Lease)
	}
}
