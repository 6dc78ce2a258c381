package mvcc

import (
	"bytes"
	"cmp"
	"fmt"

	"github.com/balsahq/balsa/raftstore/errdefs"
)

// path is which branches a transaction takes: whether the compares held, for the transaction and then, in order, for every transaction
// nested in the branch it takes. All compares read the state before the transaction, as in etcd.
type path []bool

func choose(t *tree, x *Txn, p path) path {
	held := true
	for i := range x.Compares {
		if !x.Compares[i].holds(t) {
			held = false
			break
		}
	}
	p = append(p, held)
	ops := x.Branch(held)
	for i := range ops {
		if ops[i].Type == OpTxn {
			p = choose(t, ops[i].Txn, p)
		}
	}
	return p
}

// Branch returns the operations that run when the compares held, or did not.
func (t *Txn) Branch(succeeded bool) []Op {
	if succeeded {
		return t.Success
	}
	return t.Failure
}

func (c *Compare) holds(t *tree) bool {
	if c.RangeEnd == "" {
		kv, _ := t.Get(c.Key)
		return c.holdsFor(kv)
	}
	any, all := false, true
	ascend(t, c.Key, c.RangeEnd, func(kv *KeyValue) bool {
		any, all = true, c.holdsFor(kv)
		return all
	})
	if !any {
		return c.holdsFor(nil)
	}
	return all
}

var absent = new(KeyValue)

func (c *Compare) holdsFor(kv *KeyValue) bool {
	if kv == nil {
		if c.Target == CompareValue {
			return false
		}
		kv = absent
	}
	var order int
	switch c.Target {
	case CompareValue:
		order = bytes.Compare(kv.Value, c.Value)
	case CompareVersion:
		order = cmp.Compare(kv.Version, c.Int)
	case CompareCreate:
		order = cmp.Compare(kv.CreateRevision, c.Int)
	case CompareMod:
		order = cmp.Compare(kv.ModRevision, c.Int)
	case CompareLease:
		order = cmp.Compare(int64(kv.Lease), c.Int)
	}
	switch c.Result {
	case Equal:
		return order == 0
	case NotEqual:
		return order != 0
	case Less:
		return order < 0
	}
	return order > 0
}

// runner executes one transaction on a tree. With a nil state it can only read.
type runner struct {
	tree  *tree
	state *State
	path  path
	rev   int64 // of the writes
	raw   int   // bytes of the memory that holds the values
	wrote bool
}

// applyTxn runs t, or changes nothing and returns an error.
func (s *State) applyTxn(t *Txn, raw int) (*TxnResult, error) {
	r := runner{tree: s.tree, state: s, rev: s.Rev + 1, raw: raw}
	r.path = choose(s.tree, t, make(path, 0, 1))
	if err := s.admit(t, r.path); err != nil {
		return nil, err
	}
	res := r.run(t)
	if r.wrote {
		s.Rev++
	}
	res.setRevision(s.Rev)
	return res, nil
}

// ReadTxn runs a transaction that only reads.
func (v *View) ReadTxn(t *Txn) *TxnResult {
	r := runner{tree: v.tree, path: choose(v.tree, t, make(path, 0, 1))}
	res := r.run(t)
	res.setRevision(v.Rev)
	return res
}

func (r *TxnResult) setRevision(rev int64) {
	r.Revision = rev
	for i := range r.Results {
		if r.Results[i].Txn != nil {
			r.Results[i].Txn.setRevision(rev)
		}
	}
}

// admit returns an error for a transaction that would fail half way: leases and keys that must exist and do not.
func (s *State) admit(t *Txn, p path) error {
	_, err := s.admitBranch(t, p)
	return err
}

func (s *State) admitBranch(t *Txn, p path) (path, error) {
	ops := t.Branch(p[0])
	p = p[1:]
	for i := range ops {
		op := &ops[i]
		switch op.Type {
		case OpTxn:
			var err error
			if p, err = s.admitBranch(op.Txn, p); err != nil {
				return nil, err
			}
		case OpPut:
			if op.Lease != 0 {
				if _, ok := s.leases.Get(op.Lease); !ok {
					return nil, fmt.Errorf("%w: %x for key %q", errdefs.ErrLeaseNotFound, int64(op.Lease), op.Key)
				}
			}
			if op.IgnoreValue || op.IgnoreLease {
				if _, ok := s.tree.Get(op.Key); !ok {
					return nil, fmt.Errorf("%w: %q", errdefs.ErrKeyNotFound, op.Key)
				}
			}
		}
	}
	return p, nil
}

func (r *runner) run(t *Txn) *TxnResult {
	res := &TxnResult{Succeeded: r.path[0]}
	r.path = r.path[1:]
	ops := t.Branch(res.Succeeded)
	if len(ops) == 0 {
		return res
	}
	res.Results = make([]OpResult, len(ops))
	for i := range ops {
		op, out := &ops[i], &res.Results[i]
		switch op.Type {
		case OpTxn:
			out.Txn = r.run(op.Txn)
		case OpPut:
			r.put(op, out)
		case OpDelete:
			r.delete(op, out)
		case OpRange:
			r.read(op, out)
		}
	}
	return res
}

func (r *runner) put(op *Op, out *OpResult) {
	kv := &KeyValue{Key: op.Key, Value: r.ownValue(op.Value), Lease: op.Lease, ModRevision: r.rev}
	if op.IgnoreValue || op.IgnoreLease {
		old, _ := r.tree.Get(op.Key)
		if op.IgnoreValue {
			kv.Value = old.Value
		}
		if op.IgnoreLease {
			kv.Lease = old.Lease
		}
	}
	prev := r.state.put(kv)
	r.wrote = true
	if op.PrevKV && prev != nil {
		out.PrevKVs = []*KeyValue{prev}
	}
}

// ownValue returns v, which is a part of its log entry, or a copy if v would keep a much larger entry in memory.
func (r *runner) ownValue(v []byte) []byte {
	if r.raw > 2*len(v)+256 {
		return bytes.Clone(v)
	}
	return v
}

func (r *runner) delete(op *Op, out *OpResult) {
	var gone []*KeyValue
	ascend(r.tree, op.Key, op.RangeEnd, func(kv *KeyValue) bool {
		gone = append(gone, kv)
		return true
	})
	for _, kv := range gone {
		r.state.delete(kv, r.rev)
		r.wrote = true
	}
	out.Deleted = int64(len(gone))
	if op.PrevKV {
		out.PrevKVs = gone
	}
}

func (r *runner) read(op *Op, out *OpResult) {
	ascend(r.tree, op.Key, op.RangeEnd, func(kv *KeyValue) bool {
		out.Count++
		if op.CountOnly || op.Limit > 0 && out.Count > op.Limit {
			out.More = !op.CountOnly
			return true
		}
		if op.KeysOnly {
			kv = &KeyValue{Key: kv.Key, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version, Lease: kv.Lease}
		}
		out.KVs = append(out.KVs, kv)
		return true
	})
}
