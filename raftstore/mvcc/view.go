package mvcc

import (
	"encoding/binary"
	"hash/crc64"
	"sort"
	"sync"

	"github.com/tidwall/btree"
)

// tree is the copy-on-write map of the live keys.
type tree = btree.Map[string, *KeyValue]

// copyMu serialises copies of published trees: a copy marks its source as shared, and any number of readers may copy one tree. It is held
// for nanoseconds, and no lock is taken under it.
var copyMu sync.Mutex

// copyTree returns an independent copy of t, in constant time.
func copyTree(t *tree) *tree {
	copyMu.Lock()
	defer copyMu.Unlock()
	return t.Copy()
}

// View is the whole store at one revision, immutable. Holding a View blocks no writer and keeps the tree nodes in memory that were
// replaced since.
type View struct {
	tree *tree
	Rev  int64
}

// Revision returns the revision of the view.
func (v *View) Revision() int64 { return v.Rev }

// Get returns the version of key at this revision, nil when it does not exist.
func (v *View) Get(key string) *KeyValue {
	kv, _ := v.tree.Get(key)
	return kv
}

// Len returns the number of keys.
func (v *View) Len() int { return v.tree.Len() }

// Ascend calls fn for the keys of [start, end), end as a RangeEnd, in order,
// until fn returns false.
func (v *View) Ascend(start, end string, fn func(*KeyValue) bool) {
	ascend(v.tree, start, end, fn)
}

// countWalk is up to how many keys Count counts one by one, before it searches for the bounds instead.
const countWalk = 256

// Count returns the number of keys in [start, end), end as a RangeEnd. Its time is proportional to the answer up to countWalk keys, and
// logarithmic beyond.
func (v *View) Count(start, end string) int {
	if end == fromKeyEnd && start <= fromKeyEnd {
		if n := v.tree.Len(); start == "" || n == 0 {
			return n
		}
	}
	n := 0
	ascend(v.tree, start, end, func(*KeyValue) bool { n++; return n <= countWalk })
	if n <= countWalk {
		return n
	}
	last := v.tree.Len()
	if end != fromKeyEnd {
		last = rank(v.tree, end)
	}
	return last - rank(v.tree, start)
}

// rank returns the number of keys before key. Each tree node knows how many keys are below it.
func rank(t *tree, key string) int {
	return sort.Search(t.Len(), func(i int) bool {
		k, _, _ := t.GetAt(i)
		return k >= key
	})
}

func ascend(t *tree, start, end string, fn func(*KeyValue) bool) {
	switch end {
	case "":
		if kv, ok := t.Get(start); ok {
			fn(kv)
		}
	case fromKeyEnd:
		t.Ascend(start, func(_ string, kv *KeyValue) bool { return fn(kv) })
	default:
		t.Ascend(start, func(k string, kv *KeyValue) bool { return k < end && fn(kv) })
	}
}

var hashTable = crc64.MakeTable(crc64.ECMA)

// Hash returns a checksum of the revision and of all keys, values and their revisions. Peers with equal state have equal hashes.
func (v *View) Hash() uint64 {
	var sum uint64
	buf := binary.AppendVarint(nil, v.Rev)
	v.Ascend("", fromKeyEnd, func(kv *KeyValue) bool {
		buf = appendKeyValue(buf, kv)
		if len(buf) > 32<<10 {
			sum = crc64.Update(sum, hashTable, buf)
			buf = buf[:0]
		}
		return true
	})
	return crc64.Update(sum, hashTable, buf)
}

// appendKeyValue appends one version, in the encoding of snapshots and hashes.
func appendKeyValue(b []byte, kv *KeyValue) []byte {
	b = AppendBytes(appendString(b, kv.Key), kv.Value)
	b = binary.AppendVarint(b, kv.CreateRevision)
	b = binary.AppendVarint(b, kv.ModRevision)
	b = binary.AppendVarint(b, kv.Version)
	return binary.AppendVarint(b, int64(kv.Lease))
}

func (p *Parser) keyValue() *KeyValue {
	kv := &KeyValue{Key: p.string(), Value: p.Bytes()}
	kv.CreateRevision, kv.ModRevision, kv.Version = p.Varint(), p.Varint(), p.Varint()
	kv.Lease = LeaseID(p.Varint())
	return kv
}
