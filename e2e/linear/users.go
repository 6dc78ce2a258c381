package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/e2e/history"
	"github.com/balsahq/balsa/e2e/quorum"
)

const (
	registers   = 6 // keys that are checked one by one
	setKeys     = 4 // keys that are checked together
	patience    = 1500 * time.Millisecond
	meanThought = 25 * time.Millisecond
)

// user is one client of the store. Half of the users stay with one server, the others use another server for each
// request. A user sends one request after the other.
type user struct {
	r      *run
	id     int
	rng    *rand.Rand
	serial int
	last   map[string]history.KV // the last answer for each key
}

func newUser(r *run, id int) *user {
	return &user{r: r, id: id, rng: rand.New(rand.NewPCG(r.seed, uint64(id)+1)), last: map[string]history.KV{}}
}

func (u *user) work(ctx context.Context) {
	for ctx.Err() == nil {
		op := u.next()
		op.Endpoint = u.id % u.r.servers
		if u.id%2 == 1 {
			op.Endpoint = u.rng.IntN(u.r.servers)
		}
		op = u.perform(op)
		if op.Read != nil && op.Fault == "" {
			for _, kv := range op.KVs {
				u.last[kv.Key] = kv
			}
		}
		quorum.Pause(ctx, time.Duration(u.rng.ExpFloat64()*float64(meanThought)))
	}
}

func (u *user) value() string {
	u.serial++
	return fmt.Sprintf("c%d-%d", u.id, u.serial)
}

// next returns a random operation.
func (u *user) next() history.Op {
	key := fmt.Sprintf("key/%d", u.rng.IntN(registers))
	if u.rng.IntN(2) == 0 {
		return u.nextOfSet()
	}
	switch n := u.rng.IntN(100); {
	case n < 35:
		return history.Op{Read: &history.Read{Key: key}}
	case n < 40:
		return history.Op{Read: &history.Read{Key: key, Serializable: true}}
	case n < 75:
		return history.Op{Writes: []history.Write{{Key: key, Value: u.value()}}}
	case n < 90:
		return history.Op{Compares: []history.Compare{u.compare(key)}, Writes: []history.Write{{Key: key, Value: u.value()}}, Read: &history.Read{Key: key}}
	}
	return history.Op{Writes: []history.Write{{Key: key, Delete: true}}}
}

func (u *user) nextOfSet() history.Op {
	a := u.rng.IntN(setKeys)
	key, other := fmt.Sprintf("%s%d", history.SetPrefix, a), fmt.Sprintf("%s%d", history.SetPrefix, (a+1)%setKeys)
	list := &history.Read{Key: history.SetPrefix, Prefix: true}
	switch n := u.rng.IntN(100); {
	case n < 15:
		return history.Op{Read: &history.Read{Key: key}}
	case n < 45:
		return history.Op{Read: list}
	case n < 50:
		return history.Op{Read: &history.Read{Key: history.SetPrefix, Prefix: true, Serializable: true}}
	case n < 65:
		return history.Op{Writes: []history.Write{{Key: key, Value: u.value()}}}
	case n < 75:
		return history.Op{Compares: []history.Compare{u.compare(key)}, Writes: []history.Write{{Key: key, Value: u.value()}}, Read: list}
	case n < 85: // move a value from one key to another
		return history.Op{Compares: []history.Compare{u.compare(key)}, Writes: []history.Write{{Key: key, Delete: true}, {Key: other, Value: u.value()}}, Read: list}
	case n < 97:
		return history.Op{
			Compares: []history.Compare{u.compare(key), u.compare(other)},
			Writes:   []history.Write{{Key: key, Value: u.value()}, {Key: other, Value: u.value()}}, Read: list,
		}
	}
	return history.Op{Writes: []history.Write{{Key: key, Delete: true}}}
}

// compare returns a condition on the user's last answer: it holds if the key was not written since.
func (u *user) compare(key string) history.Compare {
	kv, seen := u.last[key]
	if seen && u.rng.IntN(3) == 0 {
		return history.Compare{Key: key, Value: kv.Value, ByValue: true}
	}
	return history.Compare{Key: key, Mod: kv.Mod}
}

// perform does an operation and adds it to the history, also if it fails.
func (u *user) perform(op history.Op) history.Op {
	// The end of the run does not end an operation, because its outcome counts.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client := u.r.clients[op.Endpoint]
	op.Client, op.Call = u.id, u.r.now()
	err := send(ctx, client, &op)
	op.Return = u.r.now()
	if err != nil {
		op.Fault = fault(err)
		op.Revision, op.Succeeded, op.Changed, op.KVs = 0, false, false, nil
	}
	u.r.mu.Lock()
	defer u.r.mu.Unlock()
	u.r.history.Ops = append(u.r.history.Ops, op)
	return op
}

func fault(err error) string {
	if s, ok := status.FromError(err); ok && !errors.Is(err, context.DeadlineExceeded) {
		return s.Message()
	}
	return err.Error()
}

// send does op and writes the store's answer into it.
func send(ctx context.Context, client *clientv3.Client, op *history.Op) error {
	switch {
	case len(op.Compares) == 0 && len(op.Writes) == 0:
		read := get(op.Read)
		resp, err := client.Do(ctx, read)
		if err != nil {
			return err
		}
		op.Revision, op.Succeeded = resp.Get().Header.Revision, true
		take(op, resp.Get())
	case len(op.Compares) == 0 && len(op.Writes) == 1 && op.Read == nil:
		resp, err := client.Do(ctx, write(op.Writes[0]))
		if err != nil {
			return err
		}
		op.Succeeded = true
		if del := resp.Del(); del != nil {
			op.Revision, op.Changed = del.Header.Revision, del.Deleted > 0
		} else {
			op.Revision, op.Changed = resp.Put().Header.Revision, true
		}
	default:
		return transact(ctx, client, op)
	}
	return nil
}

func transact(ctx context.Context, client *clientv3.Client, op *history.Op) error {
	var conditions []clientv3.Cmp
	for _, c := range op.Compares {
		if c.ByValue {
			conditions = append(conditions, clientv3.Compare(clientv3.Value(c.Key), "=", c.Value))
		} else {
			conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(c.Key), "=", c.Mod))
		}
	}
	var then, otherwise []clientv3.Op
	for _, w := range op.Writes {
		then = append(then, write(w))
	}
	if op.Read != nil {
		then, otherwise = append(then, get(op.Read)), append(otherwise, get(op.Read))
	}
	resp, err := client.Txn(ctx).If(conditions...).Then(then...).Else(otherwise...).Commit()
	if err != nil {
		return err
	}
	op.Revision, op.Succeeded = resp.Header.Revision, resp.Succeeded
	for _, r := range resp.Responses {
		op.Changed = op.Changed || r.GetResponsePut() != nil || r.GetResponseDeleteRange().GetDeleted() > 0
		if r.GetResponseRange() != nil {
			take(op, (*clientv3.GetResponse)(r.GetResponseRange()))
		}
	}
	return nil
}

func write(w history.Write) clientv3.Op {
	if w.Delete {
		return clientv3.OpDelete(w.Key)
	}
	return clientv3.OpPut(w.Key, w.Value, clientv3.WithLease(clientv3.LeaseID(w.Lease)))
}

func get(r *history.Read) clientv3.Op {
	var options []clientv3.OpOption
	if r.Prefix {
		options = append(options, clientv3.WithPrefix())
	}
	if r.Serializable {
		options = append(options, clientv3.WithSerializable())
	}
	if r.At != 0 {
		options = append(options, clientv3.WithRev(r.At))
	}
	return clientv3.OpGet(r.Key, options...)
}

func take(op *history.Op, resp *clientv3.GetResponse) {
	for _, kv := range resp.Kvs {
		op.KVs = append(op.KVs, keyValue(kv))
	}
}
