package mvcc

import (
	"sync/atomic"
	"time"
)

// LeaseID names a lease. Zero means "no lease".
type LeaseID int64

// KeyValue is one version of a key. It is immutable once published; all readers share Value, which must never be written to.
type KeyValue struct {
	Key            string
	Value          []byte
	CreateRevision int64 // revision of the write that created the key
	ModRevision    int64 // revision of the write that made this version
	Version        int64 // 1 for a created key, plus one for each put since
	Lease          LeaseID
	memo           atomic.Pointer[any]
}

// Memo returns the value that SetMemo was called with, nil before the first call.
func (kv *KeyValue) Memo() any {
	if p := kv.memo.Load(); p != nil {
		return *p
	}
	return nil
}

// SetMemo keeps v for all readers of this version; v is typically the object that a reader decoded from Value. The last call wins; v must
// be immutable. A memo is in memory only and is freed with the version.
func (kv *KeyValue) SetMemo(v any) { kv.memo.Store(&v) }

// size returns the memory that this version takes, roughly, in bytes.
func (kv *KeyValue) size() int64 {
	if kv == nil {
		return 0
	}
	return int64(len(kv.Key)+len(kv.Value)) + 96
}

// CompareTarget is the field of a key that a Compare reads.
type CompareTarget uint8

// The fields that a Compare can read. A key that does not exist has version, create revision, mod revision and lease 0, and every compare
// of its value fails.
const (
	CompareValue CompareTarget = iota
	CompareVersion
	CompareCreate
	CompareMod
	CompareLease
)

// CompareResult is the relation a Compare asks for: field <relation> operand.
type CompareResult uint8

// The relations of a Compare.
const (
	Equal CompareResult = iota
	NotEqual
	Less
	Greater
)

// Compare is one condition of a Txn. With a RangeEnd it must hold for every key of the range; a range without keys is compared like a key
// that does not exist, as in etcd.
type Compare struct {
	Key, RangeEnd string
	Target        CompareTarget
	Result        CompareResult
	Int           int64  // operand of every target but CompareValue
	Value         []byte // operand of CompareValue
}

// ModRevisionIs returns a Compare that holds when key was last written at rev; rev 0 means that the key does not exist.
func ModRevisionIs(key string, rev int64) Compare {
	return Compare{Key: key, Target: CompareMod, Int: rev}
}

// CreateRevisionIs returns a Compare that holds when key was created at rev; rev 0 means that the key does not exist.
func CreateRevisionIs(key string, rev int64) Compare {
	return Compare{Key: key, Target: CompareCreate, Int: rev}
}

// OpType is the kind of an Op.
type OpType uint8

// The operations of a Txn.
const (
	OpPut OpType = iota
	OpDelete
	OpRange
	OpTxn
)

// Op is one operation of a Txn. Key and RangeEnd name a range as in etcd: an
// empty RangeEnd is the one key, "\x00" everything from Key on, anything else
// [Key, RangeEnd).
type Op struct {
	Type          OpType
	Key, RangeEnd string
	Value         []byte  // OpPut
	Lease         LeaseID // OpPut: the lease the key lives under
	PrevKV        bool    // OpPut, OpDelete: return the versions before
	IgnoreValue   bool    // OpPut: keep the value the key has; it must exist
	IgnoreLease   bool    // OpPut: keep the lease the key has; it must exist
	Limit         int64   // OpRange: greatest number of keys, 0 for all
	KeysOnly      bool    // OpRange: leave Value out
	CountOnly     bool    // OpRange: fill in Count only
	Txn           *Txn    // OpTxn
}

// Txn is the only write: Success runs when every compare holds, Failure
// otherwise. All of it is one revision. One branch may not write a key twice.
type Txn struct {
	Compares         []Compare
	Success, Failure []Op
}

// OpResult is the result of the Op at the same index.
type OpResult struct {
	KVs     []*KeyValue // OpRange
	Count   int64       // OpRange: keys in the whole range
	More    bool        // OpRange: Limit cut the answer
	Deleted int64       // OpDelete
	PrevKVs []*KeyValue // OpPut, OpDelete with PrevKV
	Txn     *TxnResult  // OpTxn
}

// TxnResult is the result of a Txn. Revision is the store's revision after it, which is the revision of its writes if it wrote
// something.
type TxnResult struct {
	Revision  int64
	Succeeded bool
	Results   []OpResult
}

// EventType is the kind of a change.
type EventType uint8

// The kinds of changes.
const (
	EventPut EventType = iota
	EventDelete
)

// Event is one change of one key. For a delete, KV has only Key and ModRevision, the revision of the delete. Prev is the version before,
// nil when the key did not exist.
type Event struct {
	Type EventType
	KV   *KeyValue
	Prev *KeyValue
}

// Lease is a lease as the replicated state knows it.
type Lease struct {
	ID  LeaseID
	TTL time.Duration // as granted
}

// PrefixEnd returns the RangeEnd with which [prefix, RangeEnd) is exactly the keys that start with prefix.
func PrefixEnd(prefix string) string {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			return prefix[:i] + string([]byte{prefix[i] + 1})
		}
	}
	return fromKeyEnd
}

// fromKeyEnd is the RangeEnd that means "no upper bound".
const fromKeyEnd = "\x00"

// InRange reports whether key lies in [start, end) with end as RangeEnd.
func InRange(key, start, end string) bool {
	switch end {
	case "":
		return key == start
	case fromKeyEnd:
		return key >= start
	}
	return key >= start && key < end
}
