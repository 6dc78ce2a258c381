package raftstore

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

// model is the slow, obvious store: every revision whole, in a list.
type model struct {
	revs      []map[string]modelKV // index 0 is revision 1
	events    map[int64][]string   // what each revision did, as text
	compacted int64
	leases    map[mvcc.LeaseID]bool
}

type modelKV struct {
	value                string
	create, mod, version int64
	lease                mvcc.LeaseID
}

func newModel() *model {
	return &model{revs: []map[string]modelKV{{}}, events: map[int64][]string{}, compacted: 1, leases: map[mvcc.LeaseID]bool{}}
}

func (m *model) rev() int64                      { return int64(len(m.revs)) }
func (m *model) at(rev int64) map[string]modelKV { return m.revs[rev-1] }
func (m *model) now() map[string]modelKV         { return m.at(m.rev()) }
func clone(a map[string]modelKV) map[string]modelKV {
	b := map[string]modelKV{}
	for k, v := range a {
		b[k] = v
	}
	return b
}

func (m *model) keys(at map[string]modelKV, start, end string) []string {
	var keys []string
	for k := range at {
		if end == "" && k == start || end == "\x00" && k >= start || end != "" && end != "\x00" && k >= start && k < end {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

func (m *model) holds(c mvcc.Compare) bool {
	keys := m.keys(m.now(), c.Key, c.RangeEnd)
	one := func(kv modelKV, exists bool) bool {
		var a int
		cmp := func(x, y int64) int {
			if x < y {
				return -1
			} else if x > y {
				return 1
			}
			return 0
		}
		switch c.Target {
		case mvcc.CompareValue:
			if !exists {
				return false
			}
			a = bytes.Compare([]byte(kv.value), c.Value)
		case mvcc.CompareVersion:
			a = cmp(kv.version, c.Int)
		case mvcc.CompareCreate:
			a = cmp(kv.create, c.Int)
		case mvcc.CompareMod:
			a = cmp(kv.mod, c.Int)
		case mvcc.CompareLease:
			a = cmp(int64(kv.lease), c.Int)
		}
		return c.Result == mvcc.Equal && a == 0 || c.Result == mvcc.NotEqual && a != 0 || c.Result == mvcc.Less && a < 0 || c.Result == mvcc.Greater && a > 0
	}
	if len(keys) == 0 {
		return one(modelKV{}, false)
	}
	for _, k := range keys {
		if !one(m.now()[k], true) {
			return false
		}
	}
	return true
}

// txn runs t on next, a copy of the newest revision, and returns what each
// operation gave as text.
func (m *model) txn(t mvcc.Txn, next map[string]modelKV, log *[]string) (out []string) {
	held := true
	for _, c := range t.Compares {
		held = held && m.holds(c)
	}
	ops := t.Success
	if !held {
		ops = t.Failure
	}
	out = append(out, fmt.Sprint("held ", held))
	for _, op := range ops {
		switch op.Type {
		case mvcc.OpTxn:
			out = append(out, m.txn(*op.Txn, next, log)...)
		case mvcc.OpPut:
			old, exists := next[op.Key]
			kv := modelKV{value: string(op.Value), create: m.rev() + 1, mod: m.rev() + 1, version: 1, lease: op.Lease}
			if exists {
				kv.create, kv.version = old.create, old.version+1
			}
			if op.IgnoreValue {
				kv.value = old.value
			}
			if op.IgnoreLease {
				kv.lease = old.lease
			}
			next[op.Key] = kv
			*log = append(*log, fmt.Sprintf("put %s %+v prev %v %+v", op.Key, kv, exists, old))
			if op.PrevKV && exists {
				out = append(out, fmt.Sprintf("prev %+v", old))
			}
		case mvcc.OpDelete:
			keys := m.keys(next, op.Key, op.RangeEnd)
			out = append(out, fmt.Sprint("deleted ", len(keys)))
			for _, k := range keys {
				if op.PrevKV {
					out = append(out, fmt.Sprintf("prev %+v", next[k]))
				}
				m.remove(next, k, log)
			}
		case mvcc.OpRange:
			keys := m.keys(next, op.Key, op.RangeEnd)
			out = append(out, fmt.Sprint("count ", len(keys)))
			if op.CountOnly {
				break
			}
			for i, k := range keys {
				if op.Limit > 0 && int64(i) >= op.Limit {
					out = append(out, "more")
					break
				}
				kv := next[k]
				if op.KeysOnly {
					kv.value = ""
				}
				out = append(out, fmt.Sprintf("%s %+v", k, kv))
			}
		}
	}
	return out
}

func (m *model) remove(next map[string]modelKV, k string, log *[]string) {
	*log = append(*log, fmt.Sprintf("delete %s %d prev true %+v", k, m.rev()+1, next[k]))
	delete(next, k)
}

// commit makes next the newest revision if anything was written.
func (m *model) commit(next map[string]modelKV, log []string) {
	if len(log) > 0 {
		m.revs = append(m.revs, next)
		m.events[m.rev()] = log
	}
}

func kvText(kv *mvcc.KeyValue) modelKV {
	return modelKV{value: string(kv.Value), create: kv.CreateRevision, mod: kv.ModRevision, version: kv.Version, lease: kv.Lease}
}

// resultText says of a result what model.txn says.
func resultText(ops func(bool) []mvcc.Op, res *mvcc.TxnResult) (out []string) {
	out = append(out, fmt.Sprint("held ", res.Succeeded))
	for i, op := range ops(res.Succeeded) {
		r := res.Results[i]
		switch op.Type {
		case mvcc.OpTxn:
			out = append(out, resultText(op.Txn.Branch, r.Txn)...)
		case mvcc.OpPut:
			for _, kv := range r.PrevKVs {
				out = append(out, fmt.Sprintf("prev %+v", kvText(kv)))
			}
		case mvcc.OpDelete:
			out = append(out, fmt.Sprint("deleted ", r.Deleted))
			for _, kv := range r.PrevKVs {
				out = append(out, fmt.Sprintf("prev %+v", kvText(kv)))
			}
		case mvcc.OpRange:
			out = append(out, fmt.Sprint("count ", r.Count))
			for _, kv := range r.KVs {
				out = append(out, fmt.Sprintf("%s %+v", kv.Key, kvText(kv)))
			}
			if r.More {
				out = append(out, "more")
			}
		}
	}
	return out
}

func eventText(e mvcc.Event) string {
	if e.Type == mvcc.EventDelete {
		return fmt.Sprintf("delete %s %d prev %v %+v", e.KV.Key, e.KV.ModRevision, e.Prev != nil, kvText(e.Prev))
	}
	old := modelKV{}
	if e.Prev != nil {
		old = kvText(e.Prev)
	}
	return fmt.Sprintf("put %s %+v prev %v %+v", e.KV.Key, kvText(e.KV), e.Prev != nil, old)
}
