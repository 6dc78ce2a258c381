package mvcc

import (
	"fmt"
	"time"

	"github.com/balsahq/balsa/raftstore/errdefs"
)

// Bounds on keys and leases.
const (
	maxKeyBytes = 8 << 10
	MinLeaseTTL = 100 * time.Millisecond
	MaxLeaseTTL = maxLeaseMillis * time.Millisecond
)

// writes are the keys and ranges that one path through a transaction may write.
type writes struct {
	puts map[string]struct{}
	dels []Op
}

// Check returns ErrInvalid or ErrDuplicateKey for a transaction that must not be proposed.
func (t *Txn) Check() error {
	_, err := t.checkDepth(0)
	return err
}

func (t *Txn) checkDepth(depth int) (writes, error) {
	if depth > maxTxnDepth {
		return writes{}, fmt.Errorf("%w: transactions nested more than %d deep", errdefs.ErrInvalid, maxTxnDepth)
	}
	for i := range t.Compares {
		if err := t.Compares[i].check(); err != nil {
			return writes{}, err
		}
	}
	success, err := checkOps(t.Success, depth)
	if err != nil {
		return writes{}, err
	}
	failure, err := checkOps(t.Failure, depth)
	if err != nil {
		return writes{}, err
	}
	// Only one branch runs, so the branches may write the same keys, but not keys that the transaction around them writes.
	both := writes{puts: success.puts, dels: append(success.dels, failure.dels...)}
	for k := range failure.puts {
		both.put(k)
	}
	return both, nil
}

func (c *Compare) check() error {
	if c.Target > CompareLease || c.Result > Greater {
		return fmt.Errorf("%w: compare of target %d, relation %d", errdefs.ErrInvalid, c.Target, c.Result)
	}
	return CheckKey(c.Key, c.RangeEnd)
}

func (w *writes) put(key string) {
	if w.puts == nil {
		w.puts = make(map[string]struct{})
	}
	w.puts[key] = struct{}{}
}

// checkOps checks one branch. As in etcd, no key may be put twice, or put and deleted, so that a revision has at most one version of each
// key.
func checkOps(ops []Op, depth int) (writes, error) {
	var w writes
	for i := range ops {
		op := &ops[i]
		if op.Type == OpTxn {
			if op.Txn == nil {
				return w, fmt.Errorf("%w: operation without its transaction", errdefs.ErrInvalid)
			}
			inner, err := op.Txn.checkDepth(depth + 1)
			if err != nil {
				return w, err
			}
			if err := w.merge(inner); err != nil {
				return w, err
			}
			continue
		}
		if err := op.check(); err != nil {
			return w, err
		}
		var own writes
		switch op.Type {
		case OpPut:
			own.put(op.Key)
		case OpDelete:
			own.dels = []Op{*op}
		}
		if err := w.merge(own); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (w *writes) merge(o writes) error {
	for k := range o.puts {
		if _, dup := w.puts[k]; dup {
			return fmt.Errorf("%w: %q", errdefs.ErrDuplicateKey, k)
		}
		if deletes(w.dels, k) {
			return fmt.Errorf("%w: %q", errdefs.ErrDuplicateKey, k)
		}
	}
	for k := range w.puts {
		if deletes(o.dels, k) {
			return fmt.Errorf("%w: %q", errdefs.ErrDuplicateKey, k)
		}
	}
	if len(o.puts) > 0 && w.puts == nil {
		w.puts = o.puts
	} else {
		for k := range o.puts {
			w.puts[k] = struct{}{}
		}
	}
	w.dels = append(w.dels, o.dels...)
	return nil
}

func deletes(dels []Op, key string) bool {
	for i := range dels {
		if InRange(key, dels[i].Key, dels[i].RangeEnd) {
			return true
		}
	}
	return false
}

func (op *Op) check() error {
	switch op.Type {
	case OpPut:
		if op.RangeEnd != "" {
			return fmt.Errorf("%w: put of a range", errdefs.ErrInvalid)
		}
		if op.IgnoreValue && len(op.Value) > 0 {
			return fmt.Errorf("%w: put of %q with a value and IgnoreValue", errdefs.ErrInvalid, op.Key)
		}
		if op.IgnoreLease && op.Lease != 0 {
			return fmt.Errorf("%w: put of %q with a lease and IgnoreLease", errdefs.ErrInvalid, op.Key)
		}
	case OpDelete:
	case OpRange:
		if op.Limit < 0 {
			return fmt.Errorf("%w: range limit %d", errdefs.ErrInvalid, op.Limit)
		}
	default:
		return fmt.Errorf("%w: operation of type %d", errdefs.ErrInvalid, op.Type)
	}
	return CheckKey(op.Key, op.RangeEnd)
}

// CheckKey returns ErrInvalid for a range that is empty or too long.
func CheckKey(key, end string) error {
	if key == "" && end == "" {
		return fmt.Errorf("%w: empty key", errdefs.ErrInvalid)
	}
	if len(key) > maxKeyBytes || len(end) > maxKeyBytes {
		return fmt.Errorf("%w: key of %d bytes, at most %d allowed", errdefs.ErrInvalid, max(len(key), len(end)), maxKeyBytes)
	}
	return nil
}

// ReadOnly reports whether t has no operation that writes, in either branch.
func (t *Txn) ReadOnly() bool {
	for _, ops := range [2][]Op{t.Success, t.Failure} {
		for i := range ops {
			switch op := &ops[i]; {
			case op.Type == OpRange:
			case op.Type == OpTxn && op.Txn.ReadOnly():
			default:
				return false
			}
		}
	}
	return true
}
