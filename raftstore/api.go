package raftstore

import (
	"io"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

// Types of package mvcc that callers read and write.
type (
	// LeaseID names a lease; 0 is no lease.
	LeaseID = mvcc.LeaseID
	// Lease is a lease with its time to live.
	Lease = mvcc.Lease
	// KeyValue is one key at one revision.
	KeyValue = mvcc.KeyValue
	// Event is one change of one key.
	Event = mvcc.Event
	// EventType is put or delete.
	EventType = mvcc.EventType
	// View is the state at one revision, immutable.
	View = mvcc.View
	// Txn is a transaction, the only write.
	Txn = mvcc.Txn
	// TxnResult is the result of a Txn.
	TxnResult = mvcc.TxnResult
	// Compare is a condition of a Txn.
	Compare = mvcc.Compare
	// CompareTarget is the field that a Compare reads.
	CompareTarget = mvcc.CompareTarget
	// CompareResult is the relation that must hold.
	CompareResult = mvcc.CompareResult
	// Op is one operation of a Txn.
	Op = mvcc.Op
	// OpType is put, delete, range or a nested Txn.
	OpType = mvcc.OpType
	// OpResult is the result of an Op.
	OpResult = mvcc.OpResult
	// SnapshotInfo describes the content of a snapshot.
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

// PrefixEnd returns the end of the range of all keys with a prefix.
func PrefixEnd(prefix string) string { return mvcc.PrefixEnd(prefix) }

// VerifySnapshot reads a snapshot to its end and returns what it holds.
func VerifySnapshot(r io.Reader) (SnapshotInfo, error) { return mvcc.VerifySnapshot(r) }
