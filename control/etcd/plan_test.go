package etcd

import (
	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"
)

// plan draws operations.
type plan struct {
	t      *rapid.T
	writes int // about how many there were
}

func (p *plan) n(most int) int { return rapid.IntRange(0, most).Draw(p.t, "n") }
func (p *plan) maybe() bool    { return rapid.Bool().Draw(p.t, "maybe") }
func (p *plan) seldom() bool   { return p.n(5) == 0 }
func (p *plan) key() string {
	return rapid.SampledFrom([]string{"a", "aa", "b", "c", "c\x00", "c\xff", "d"}).Draw(p.t, "key")
}
func (p *plan) value() string {
	return rapid.SampledFrom([]string{"", "1", "2", "3"}).Draw(p.t, "value")
}
func (p *plan) end() string {
	return rapid.SampledFrom([]string{"", "b", "c", "c\x01", "\xff", "\xff"}).Draw(p.t, "end")
}

func (p *plan) get(inTxn bool) getOp {
	o := getOp{start: p.key(), end: p.end(), at: -1}
	if !inTxn && p.seldom() {
		o.at = p.n(p.writes + 1)
	}
	switch p.n(5) {
	case 0:
		o.limit = p.n(3)
	case 1:
		o.limit, o.order = p.n(3), clientv3.SortDescend
	case 2:
		o.by = rapid.SampledFrom([]clientv3.SortTarget{clientv3.SortByVersion, clientv3.SortByCreateRevision, clientv3.SortByModRevision, clientv3.SortByValue}).Draw(p.t, "by")
		o.order = rapid.SampledFrom([]clientv3.SortOrder{clientv3.SortNone, clientv3.SortAscend, clientv3.SortDescend}).Draw(p.t, "order")
	case 3:
		o.minMod, o.maxMod, o.limit = p.n(p.writes), p.n(p.writes), p.n(2)
	case 4:
		o.minNew, o.maxNew = p.n(p.writes), p.n(p.writes)
	}
	o.keysOnly, o.countOnly = p.seldom(), p.seldom()
	return o
}

func (p *plan) op(depth int) any {
	switch n := p.n(9); {
	case n < 3:
		return p.get(depth > 0)
	case n < 7 || n == 9 && depth > 1:
		o := putOp{key: p.key(), value: p.value(), prev: p.maybe(), ignoreValue: p.seldom(), ignoreLease: p.seldom()}
		if !o.ignoreLease && p.seldom() {
			o.lease = 1 + p.n(1)
		}
		if o.ignoreValue {
			o.value = ""
		}
		return o
	case n < 9:
		return delOp{start: p.key(), end: p.end(), prev: p.maybe()}
	}
	t := txnOp{then: p.branch(depth), else_: p.branch(depth)}
	for range p.n(2) {
		t.ifs = append(t.ifs, cmpOp{
			start: p.key(), end: p.end(), n: p.n(p.writes), value: p.value(),
			target:   rapid.SampledFrom([]string{"value", "version", "create", "mod"}).Draw(p.t, "target"),
			relation: rapid.SampledFrom([]string{"=", "!=", "<", ">"}).Draw(p.t, "relation"),
		})
	}
	return t
}

// branch has one nested transaction at most: of two, etcd does not look whether
// the second deletes what the first put.
func (p *plan) branch(depth int) (ops []any) {
	nested := false
	for range p.n(3) {
		op := p.op(depth + 1)
		if _, is := op.(txnOp); is {
			if nested {
				continue
			}
			nested = true
		}
		ops = append(ops, op)
	}
	return ops
}

func (p *plan) step() any {
	switch p.n(24) {
	case 0:
		return compactOp{at: p.n(p.writes + 1)}
	case 1:
		return grantOp{slot: 1 + p.n(1)}
	case 2:
		return revokeOp{slot: 1 + p.n(1)}
	}
	return p.op(0)
}
