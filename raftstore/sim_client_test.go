package raftstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/balsahq/balsa/raftstore"
)

// client is one client of the workload.
type client struct {
	w    *world
	n    int
	rng  *rand.Rand
	tags int
}

func (w *world) client(n int) *client {
	return &client{w: w, n: n, rng: rand.New(rand.NewPCG(w.seed, uint64(1000+n)))}
}

// value returns a value that nothing else writes.
func (c *client) value() string {
	c.tags++
	return fmt.Sprintf("t-%d-%d", c.n, c.tags)
}

func (c *client) key() string { return simKey(c.rng.IntN(simKeys)) }

// think waits between two requests; false when the run is over.
func (c *client) think(most time.Duration) bool {
	return c.sleep(time.Duration(c.rng.Int64N(int64(most))))
}

func (c *client) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.w.ctx.Done():
		return false
	}
}

func (c *client) patience() time.Duration {
	return []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second, 8 * time.Second}[c.rng.IntN(4)]
}

// work asks one thing after the other until the run is over.
func (c *client) work() {
	for c.think(c.w.traits.think) {
		s := c.w.pick(c.rng)
		if s == nil {
			continue
		}
		switch c.rng.IntN(12) {
		case 0, 1, 2:
			c.txn(s, c.put())
		case 3:
			c.txn(s, c.remove())
		case 4, 5:
			c.txn(s, c.several())
		case 6, 7:
			c.change(s)
		case 8, 9:
			c.read(s)
		case 10:
			c.txn(s, raftstore.Txn{Success: []raftstore.Op{{Type: raftstore.OpRange, Key: "/k/", RangeEnd: "/k0"}}})
		case 11:
			c.look(s)
		}
	}
}

func (c *client) put() raftstore.Txn {
	return raftstore.Txn{Success: []raftstore.Op{{Type: raftstore.OpPut, Key: c.key(), Value: []byte(c.value())}}}
}

func (c *client) remove() raftstore.Txn {
	return raftstore.Txn{Success: []raftstore.Op{{Type: raftstore.OpDelete, Key: c.key()}, {Type: raftstore.OpPut, Key: c.other(), Value: []byte(c.value())}}}
}

// other is a key of the client's own that others do not touch.
func (c *client) other() string { return fmt.Sprintf("/own/%d", c.n) }

// several writes two keys at once and says in the other branch what there is.
func (c *client) several() raftstore.Txn {
	a := c.rng.IntN(simKeys)
	b := (a + 1 + c.rng.IntN(simKeys-1)) % simKeys
	v := []byte(c.value())
	t := raftstore.Txn{
		Compares: []raftstore.Compare{{Key: simKey(a), Target: raftstore.CompareVersion, Int: int64(c.rng.IntN(3))}},
		Success:  []raftstore.Op{{Type: raftstore.OpPut, Key: simKey(a), Value: v}, {Type: raftstore.OpPut, Key: simKey(b), Value: v}},
		Failure:  []raftstore.Op{{Type: raftstore.OpRange, Key: "/k/", RangeEnd: "/k0"}},
	}
	if c.rng.IntN(2) == 0 {
		t.Compares = nil
	}
	return t
}

// change reads a key and writes it if no other client did meanwhile; a second try,
// perhaps at another server, carries the same compare and so is safe.
func (c *client) change(s *server) {
	op := c.read(s)
	if op == nil {
		return
	}
	k := c.rng.IntN(simKeys)
	t := raftstore.Txn{
		Compares: []raftstore.Compare{raftstore.ModRevisionIs(simKey(k), op.cells[k].mod)},
		Failure:  []raftstore.Op{{Type: raftstore.OpRange, Key: "/k/", RangeEnd: "/k0"}},
	}
	for range 3 {
		t.Success = []raftstore.Op{{Type: raftstore.OpPut, Key: simKey(k), Value: []byte(c.value())}}
		if o := c.txn(s, t); o.known {
			return
		}
		if s = c.w.pick(c.rng); s == nil {
			return
		}
	}
}

// tagOf is the value of its own that a transaction writes.
func tagOf(t *raftstore.Txn) string {
	for _, op := range t.Success {
		if op.Type == raftstore.OpPut {
			return string(op.Value)
		}
	}
	return ""
}

// txn runs t on s and writes down what came of it.
func (c *client) txn(s *server, t raftstore.Txn) *simOp {
	op := &simOp{client: c.n, txn: t, tag: tagOf(&t), text: describe(s, &t)}
	c.transact(op, s)
	return op
}

func (c *client) transact(op *simOp, s *server) {
	w := c.w
	w.h.begin(op)
	type both struct {
		res  *raftstore.TxnResult
		seen int64
	}
	got, err := ask(w, s, c.patience(), func(ctx context.Context, r *run) (both, error) {
		res, err := r.store.Txn(ctx, op.txn)
		return both{res, r.store.View().Revision()}, err
	})
	switch {
	case err == nil:
		op.known, op.rev, op.succeeded, op.results = true, got.res.Revision, got.res.Succeeded, got.res.Results
		if got.seen < op.rev {
			w.h.failf("%s was answered at %d, but %s shows %d", op.text, op.rev, short(s.id), got.seen)
		}
	case refused(err):
		op.known, op.refused = true, true
	}
	w.h.end(op)
	if err != nil && simLog {
		w.h.logf("    %s: %v", op.text, err)
	}
}

// refused says whether an error means that nothing was changed.
func refused(err error) bool {
	for _, e := range []error{errDown, raftstore.ErrInvalid, raftstore.ErrLeaseNotFound, raftstore.ErrKeyNotFound, raftstore.ErrDuplicateKey, raftstore.ErrTooLarge} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// read takes a current view; nil when there is none.
func (c *client) read(s *server) *simOp {
	return c.view(s, "read", func(ctx context.Context, r *run) (*raftstore.View, error) { return r.store.Barrier(ctx) })
}

// look takes a view that need not be current, now or in the past.
func (c *client) look(s *server) {
	r := c.w.runOf(s)
	if r == nil {
		return
	}
	if c.rng.IntN(2) == 0 {
		back := c.rng.Int64N(20)
		op := c.view(s, "look back", func(_ context.Context, r *run) (*raftstore.View, error) {
			return r.store.ViewAt(max(r.store.View().Revision()-back, r.store.CompactRevision()))
		})
		if op != nil {
			op.serial = fmt.Sprint("the past ", op.call) // in no order with others
		}
		return
	}
	op := c.view(s, "look", func(_ context.Context, now *run) (*raftstore.View, error) {
		r = now
		return now.store.View(), nil
	})
	if op != nil {
		op.serial = r.name
	}
}

func (c *client) view(s *server, what string, fn func(context.Context, *run) (*raftstore.View, error)) *simOp {
	op := &simOp{client: c.n, read: true, text: what + " at " + short(s.id), serial: ""}
	c.w.h.begin(op)
	v, err := ask(c.w, s, c.patience(), fn)
	if err != nil {
		if simLog {
			c.w.h.logf("client %d: %s: %v", c.n, op.text, err)
		}
		return nil // a read that was not answered says nothing
	}
	op.known, op.rev, op.cells = true, v.Revision(), cellsOf(v)
	if what != "read" {
		op.serial = what
	}
	c.w.h.end(op)
	return op
}

func describe(s *server, t *raftstore.Txn) string {
	text := "at " + short(s.id)
	for i := range t.Compares {
		cmp := &t.Compares[i]
		text += fmt.Sprintf(" if %s field %d is %d", cmp.Key, cmp.Target, cmp.Int)
	}
	for _, op := range t.Success {
		text += fmt.Sprintf(" %s %s %s", [...]string{"put", "delete", "list"}[op.Type], op.Key, op.Value)
	}
	return text
}
