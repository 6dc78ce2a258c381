package raftstore

import (
	"io"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

// What callers read and write is the state's, under the store's name.
type (
	// LeaseID names a lease; 0 is no lease.
	LeaseID = mvcc.LeaseID
	// Lease is a lease with its time to live.
	Lease = mvcc.Lease
	// KeyValue is one key at one revision.
	KeyValue = mvcc.KeyValue
	// Event is one change of one key.
	Event = mvcc.Event
	// EventType says what an Event did.
	EventType = mvcc.EventType
	// View is the state at one revision, immutable.
	View = mvcc.View
	// Txn is a transaction, the only write.
	Txn = mvcc.Txn
	// TxnResult is what a Txn came to.
	TxnResult = mvcc.TxnResult
	// Compare is a condition of a Txn.
	Compare = mvcc.Compare
	// CompareTarget is what a Compare looks at.
	CompareTarget = mvcc.CompareTarget
	// CompareResult is how it has to be.
	CompareResult = mvcc.CompareResult
	// Op is one operation of a Txn.
	Op = mvcc.Op
	// OpType says what an Op does.
	OpType = mvcc.OpType
	// OpResult is what an Op came to.
	OpResult = mvcc.OpResult
	// SnapshotInfo says what a snapshot holds.
	SnapshotInfo = mvcc.SnapshotInfo
)

// See package mvcc.
const (
	CompareValue   = mvcc.CompareValue
	CompareVersion = mvcc.CompareVersion
	CompareCreate  = mvcc.CompareCreate
	CompareMod     = mvcc.CompareMod
	CompareLease   = mvcc.CompareLease

	Equal    = mvcc.Equal
	NotEqual = mvcc.NotEqual
	Less     = mvcc.Less
	Greater  = mvcc.Greater

	OpPut    = mvcc.OpPut
	OpDelete = mvcc.OpDelete
	OpRange  = mvcc.OpRange
	OpTxn    = mvcc.OpTxn

	EventPut    = mvcc.EventPut
	EventDelete = mvcc.EventDelete
)

// ModRevisionIs holds when the key's last change is rev; 0 when there is no key.
func ModRevisionIs(key string, rev int64) Compare { return mvcc.ModRevisionIs(key, rev) }

// CreateRevisionIs holds when the key was made at rev; 0 when there is no key.
func CreateRevisionIs(key string, rev int64) Compare { return mvcc.CreateRevisionIs(key, rev) }

// PrefixEnd is the end of the range of all keys with a prefix.
func PrefixEnd(prefix string) string { return mvcc.PrefixEnd(prefix) }

// VerifySnapshot reads a snapshot to its end and says what it holds.
func VerifySnapshot(r io.Reader) (SnapshotInfo, error) { return mvcc.VerifySnapshot(r) }
