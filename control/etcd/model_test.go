package etcd

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// The operations of the differential test. Revisions in them are numbers of
// writes: 0 is the state before the first, n the state after the n-th.

type getOp struct {
	start, end                     string // end "" is one key
	at                             int    // -1: the newest
	limit                          int
	by                             clientv3.SortTarget
	order                          clientv3.SortOrder
	keysOnly, countOnly            bool
	minMod, maxMod, minNew, maxNew int // 0: none
}

type putOp struct {
	key, value                     string
	prev, ignoreValue, ignoreLease bool
	lease                          int // slot, 0 none
}

type delOp struct {
	start, end string
	prev       bool
}

type cmpOp struct {
	start, end string
	target     string // value, version, create, mod
	relation   string
	n          int
	value      string
}

type txnOp struct {
	ifs         []cmpOp
	then, else_ []any
}

type compactOp struct{ at int }
type grantOp struct{ slot int }
type revokeOp struct{ slot int }

// version is one version of a key in the model.
type version struct {
	key, value            string
	created, mod, version int
	lease                 int
}

func (v version) String() string {
	return fmt.Sprintf("%s=%s@%d/%d/%d/%d", v.key, v.value, v.created, v.mod, v.version, v.lease)
}

// model is what etcd does, in the simplest way: every state there was.
type model struct {
	states    []map[string]version
	events    []string
	compacted int
	leases    map[int]bool
}

func newModel() *model {
	return &model{states: []map[string]version{{}}, compacted: -1, leases: map[int]bool{}}
}

func (m *model) now() int                   { return len(m.states) - 1 }
func (m *model) newest() map[string]version { return m.states[m.now()] }
func covers(k, start, end string) bool {
	return end == "" && k == start || end != "" && k >= start && k < end
}
func ranged(s map[string]version, start, end string) []version {
	var out []version
	for _, k := range slices.Sorted(maps.Keys(s)) {
		if covers(k, start, end) {
			out = append(out, s[k])
		}
	}
	return out
}

const (
	notFound  = "error: not found"
	duplicate = "error: etcdserver: duplicate key given in txn request"
	gone      = "error: etcdserver: mvcc: required revision has been compacted"
	future    = "error: etcdserver: mvcc: required revision is a future revision"
)

func (m *model) do(op any) string {
	switch o := op.(type) {
	case getOp:
		switch {
		case o.at > m.now():
			return future
		case o.at >= 0 && o.at < m.compacted:
			return gone
		}
		return fmt.Sprintf("%d ", m.now()) + m.get(m.newest(), o)
	case compactOp:
		switch {
		case o.at > m.now():
			return future
		case o.at <= m.compacted:
			return gone
		}
		m.compacted = o.at
		return "ok"
	case grantOp:
		m.leases[o.slot] = true
		return "ok"
	case revokeOp:
		if !m.leases[o.slot] {
			return notFound
		}
		delete(m.leases, o.slot)
		w := m.begin()
		for _, v := range ranged(w.state, "", "\xff") {
			if v.lease == o.slot {
				w.delete(v)
			}
		}
		w.commit()
		return "ok"
	}
	t, single := op.(txnOp)
	if !single {
		t = txnOp{then: []any{op}}
	}
	if !writesOnce(t) {
		return duplicate
	}
	path := m.choose(t)
	if !m.admits(t, path) {
		return notFound
	}
	w := m.begin()
	out := w.txn(t, &path)
	w.commit()
	if !single { // without the frame of a transaction
		out = strings.TrimSuffix(strings.TrimPrefix(out, "true["), "]")
	}
	return fmt.Sprintf("%d ", m.now()) + out
}

func (m *model) get(s map[string]version, o getOp) string {
	if o.at >= 0 {
		s = m.states[o.at]
	}
	kvs := ranged(s, o.start, o.end)
	count := len(kvs)
	if o.countOnly {
		return fmt.Sprintf("{%d false []}", count)
	}
	kvs = slices.DeleteFunc(kvs, func(v version) bool {
		return o.minMod > 0 && v.mod < o.minMod || o.maxMod > 0 && v.mod > o.maxMod || o.minNew > 0 && v.created < o.minNew || o.maxNew > 0 && v.created > o.maxNew
	})
	if o.by == clientv3.SortByKey && o.order == clientv3.SortDescend {
		slices.Reverse(kvs)
	}
	more := o.limit > 0 && len(kvs) > o.limit
	if more {
		kvs = kvs[:o.limit]
	}
	if o.keysOnly {
		for i := range kvs {
			kvs[i].value = ""
		}
	}
	return fmt.Sprintf("{%d %v %v}", count, more, kvs)
}

func (m *model) choose(t txnOp) []bool {
	held := !slices.ContainsFunc(t.ifs, func(c cmpOp) bool { return !m.holds(c) })
	path := []bool{held}
	for _, op := range t.branch(held) {
		if in, ok := op.(txnOp); ok {
			path = append(path, m.choose(in)...)
		}
	}
	return path
}

func (t txnOp) branch(held bool) []any {
	if held {
		return t.then
	}
	return t.else_
}

func (m *model) holds(c cmpOp) bool {
	kvs := ranged(m.newest(), c.start, c.end)
	if len(kvs) == 0 {
		if c.target == "value" {
			return false
		}
		kvs = []version{{}}
	}
	for _, v := range kvs {
		n := 0
		switch c.target {
		case "value":
			n = bytes.Compare([]byte(v.value), []byte(c.value))
		case "version":
			n = cmp.Compare(v.version, c.n)
		case "create":
			n = cmp.Compare(v.created, c.n)
		case "mod":
			n = cmp.Compare(v.mod, c.n)
		}
		if ok := map[string]bool{"=": n == 0, "!=": n != 0, "<": n < 0, ">": n > 0}[c.relation]; !ok {
			return false
		}
	}
	return true
}

// writesOnce is etcd's rule that a branch puts no key twice, and puts none it
// deletes.
func writesOnce(t txnOp) bool {
	for _, ops := range [][]any{t.then, t.else_} {
		if _, _, ok := writes(ops); !ok {
			return false
		}
	}
	return true
}

func writes(ops []any) (puts []string, dels []delOp, ok bool) {
	for _, op := range ops {
		switch o := op.(type) {
		case delOp:
			dels = append(dels, o)
		case txnOp:
			p, d, ok1 := writes(o.then)
			q, e, ok2 := writes(o.else_)
			if !ok1 || !ok2 {
				return nil, nil, false
			}
			both := slices.Concat(p, q)
			slices.Sort(both)
			puts = append(puts, slices.Compact(both)...)
			dels = append(append(dels, d...), e...)
			// What is in one branch of it may be in the other.
			for _, k := range both {
				for _, op := range ops {
					if x, isDel := op.(delOp); isDel && covers(k, x.start, x.end) {
						return nil, nil, false
					}
				}
			}
			continue
		}
	}
	for _, op := range ops {
		if o, isPut := op.(putOp); isPut {
			if slices.Contains(puts, o.key) || slices.ContainsFunc(dels, func(d delOp) bool { return covers(o.key, d.start, d.end) }) {
				return nil, nil, false
			}
			puts = append(puts, o.key)
		}
	}
	return puts, dels, true
}

func (m *model) admits(t txnOp, path []bool) bool {
	ok, _ := m.admitsPath(t, path)
	return ok
}

func (m *model) admitsPath(t txnOp, path []bool) (bool, []bool) {
	ops := t.branch(path[0])
	path = path[1:]
	for _, op := range ops {
		switch o := op.(type) {
		case putOp:
			if _, exists := m.newest()[o.key]; (o.ignoreValue || o.ignoreLease) && !exists || o.lease != 0 && !m.leases[o.lease] {
				return false, nil
			}
		case txnOp:
			var ok bool
			if ok, path = m.admitsPath(o, path); !ok {
				return false, nil
			}
		}
	}
	return true, path
}

// write is one write under way.
type write struct {
	m      *model
	state  map[string]version
	events []string
}

func (m *model) begin() *write { return &write{m: m, state: maps.Clone(m.newest())} }

func (w *write) commit() {
	if len(w.events) > 0 {
		w.m.states = append(w.m.states, w.state)
		w.m.events = append(w.m.events, w.events...)
	}
}

func (w *write) delete(v version) {
	delete(w.state, v.key)
	w.events = append(w.events, fmt.Sprintf("%d DELETE %s was %v", len(w.m.states), v.key, v))
}

func (w *write) txn(t txnOp, path *[]bool) string {
	held := (*path)[0]
	*path = (*path)[1:]
	var out []string
	for _, op := range t.branch(held) {
		switch o := op.(type) {
		case getOp:
			out = append(out, w.m.get(w.state, o))
		case putOp:
			out = append(out, w.put(o))
		case delOp:
			kvs, prev := ranged(w.state, o.start, o.end), []version(nil)
			for _, v := range kvs {
				w.delete(v)
			}
			if o.prev {
				prev = kvs
			}
			out = append(out, fmt.Sprintf("%d %v", len(kvs), prev))
		case txnOp:
			out = append(out, w.txn(o, path))
		}
	}
	return fmt.Sprintf("%v%v", held, out)
}

func (w *write) put(o putOp) string {
	old, was := w.state[o.key]
	v := version{key: o.key, value: o.value, created: len(w.m.states), mod: len(w.m.states), version: 1, lease: o.lease}
	prev, event := "-", "-"
	if was {
		v.created, v.version = old.created, old.version+1
		event = old.String()
		if o.prev {
			prev = old.String()
		}
		if o.ignoreValue {
			v.value = old.value
		}
		if o.ignoreLease {
			v.lease = old.lease
		}
	}
	w.state[o.key] = v
	w.events = append(w.events, fmt.Sprintf("%d PUT %v was %s", v.mod, v, event))
	return prev
}

// history is the events after write number n.
func (m *model) history(n int) []string {
	var out []string
	for _, e := range m.events {
		var at int
		fmt.Sscan(e, &at)
		if at > n {
			out = append(out, e)
		}
	}
	return out
}
