package storage

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/balsahq/balsa/raftstore"
)

// Extras are further compares and operations for the Txn of a write, for example to claim an address or to change a
// second object. The caller may change them until the write is made; each attempt of a GuaranteedUpdate reads them
// again. A successful write empties them, so that they are used once.
type Extras struct {
	Compares []raftstore.Compare
	Ops      []raftstore.Op
}

type (
	extrasKey struct{}
	fenceKey  struct{}
)

// WithExtras adds e to the next Create, GuaranteedUpdate or Delete with this context. If a compare of e does not hold,
// nothing is written and the error is ErrExtraCompare. An update that changes nothing still does e.Ops.
func WithExtras(ctx context.Context, e *Extras) context.Context {
	return context.WithValue(ctx, extrasKey{}, e)
}

// WithFence makes every write with this context depend on fence. If fence does not hold, nothing is written and the
// error is ErrFenced.
func WithFence(ctx context.Context, fence raftstore.Compare) context.Context {
	return context.WithValue(ctx, fenceKey{}, fence)
}

func extrasOf(ctx context.Context) *Extras {
	if e, ok := ctx.Value(extrasKey{}).(*Extras); ok && e != nil {
		return e
	}
	return &Extras{}
}

// empty reports whether the next write has nothing extra to do.
func (e *Extras) empty() bool { return len(e.Compares) == 0 && len(e.Ops) == 0 }

// outcome is the result of a Txn that the store has answered.
type outcome struct {
	revision int64
	// conflict: the key was not at the expected revision. current is its present value, nil if it does not exist.
	conflict bool
	current  *raftstore.KeyValue
}

// commit does op (nil: none) and the context's extras in one Txn, provided that key was last written at rev (0: does
// not exist) and that the fence and the extras' compares hold.
func (s *store) commit(ctx context.Context, key string, rev int64, op *raftstore.Op) (outcome, error) {
	extras := extrasOf(ctx)
	txn := raftstore.Txn{Compares: []raftstore.Compare{raftstore.ModRevisionIs(key, rev)}}
	fence, fenced := ctx.Value(fenceKey{}).(raftstore.Compare)
	if fenced {
		txn.Compares = append(txn.Compares, fence)
	}
	first := len(txn.Compares) // of the extras' compares
	txn.Compares = append(txn.Compares, extras.Compares...)
	if op != nil {
		txn.Success = append(txn.Success, *op)
	}
	txn.Success = append(txn.Success, extras.Ops...)
	for _, c := range txn.Compares {
		txn.Failure = append(txn.Failure, raftstore.Op{Type: raftstore.OpRange, Key: c.Key, RangeEnd: c.RangeEnd})
	}
	began := time.Now()
	result, err := s.kv.Txn(ctx, txn)
	s.took(operationOf(rev, op), began, err)
	if err != nil {
		return outcome{}, err
	}
	if result.Succeeded {
		extras.Compares, extras.Ops = nil, nil
		return outcome{revision: result.Revision}, nil
	}
	if len(result.Results) != len(txn.Compares) {
		return outcome{}, fmt.Errorf("store answered %d results to %d reads", len(result.Results), len(txn.Compares))
	}
	if fenced && !holds(fence, result.Results[1].KVs) {
		fencedWrites.Inc()
		return outcome{}, newFencedError(fence, result.Results[1].KVs)
	}
	if kvs := result.Results[0].KVs; !holds(txn.Compares[0], kvs) {
		out := outcome{revision: result.Revision, conflict: true}
		if len(kvs) > 0 {
			out.current = kvs[0]
		}
		return out, nil
	}
	for i, c := range extras.Compares {
		if kvs := result.Results[first+i].KVs; !holds(c, kvs) {
			return outcome{}, newExtraCompareError(i, c, kvs)
		}
	}
	return outcome{}, fmt.Errorf("store refused a write to %q although every condition holds", key)
}

// holds evaluates c as the store does; kvs is the content of the compared key or range.
func holds(c raftstore.Compare, kvs []*raftstore.KeyValue) bool {
	if len(kvs) == 0 { // all fields are 0, and there is no value
		return c.Target != raftstore.CompareValue && holdsFor(c, &raftstore.KeyValue{})
	}
	for _, kv := range kvs {
		if !holdsFor(c, kv) {
			return false
		}
	}
	return true
}

func holdsFor(c raftstore.Compare, kv *raftstore.KeyValue) bool {
	var order int
	switch c.Target {
	case raftstore.CompareValue:
		order = bytes.Compare(kv.Value, c.Value)
	case raftstore.CompareVersion:
		order = cmp.Compare(kv.Version, c.Int)
	case raftstore.CompareCreate:
		order = cmp.Compare(kv.CreateRevision, c.Int)
	case raftstore.CompareMod:
		order = cmp.Compare(kv.ModRevision, c.Int)
	case raftstore.CompareLease:
		order = cmp.Compare(int64(kv.Lease), c.Int)
	}
	switch c.Result {
	case raftstore.Equal:
		return order == 0
	case raftstore.NotEqual:
		return order != 0
	case raftstore.Less:
		return order < 0
	}
	return order > 0
}
