package raftstore

import (
	"context"
	"errors"
	"time"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

// Peers carries requests from this peer to another. The store never dials: who
// a peer is and where it is now is the business of whoever implements this.
type Peers interface {
	// Forward hands a batch of commands to the peer `to`, which leads as far as
	// this peer knows, and returns when that peer's log has taken or refused
	// it. A nil error says nothing about commitment: the sender learns that by
	// applying the batch itself.
	Forward(ctx context.Context, to string, batch Batch) error
	// ReadIndex asks the leader for the index of an entry such that a peer that
	// has applied it has applied every write acknowledged before the call.
	ReadIndex(ctx context.Context, to string) (uint64, error)
	// KeepAlive renews a lease with the leader and returns its full time.
	KeepAlive(ctx context.Context, to string, id mvcc.LeaseID) (time.Duration, error)
	// LeaseRemaining asks the leader how long a lease still lives.
	LeaseRemaining(ctx context.Context, to string, id mvcc.LeaseID) (time.Duration, error)
}

// Batch is a run of commands of one origin, encoded; see [Store.Forwarded].
type Batch struct {
	// Entry is what goes into the log, opaque to whoever carries it.
	Entry []byte
	// Oldest is the lowest sequence number that the origin still waits for.
	// What is below it is finished and must not be appended again.
	Oldest uint64
}

// What a peer answers another with. Whoever implements Peers keeps these across
// the wire: errors.Is must find them on the asking side, as it must find
// ErrDiskFull, ErrDiskReadOnly, ErrDisk, ErrClosed, ErrLeaseNotFound, ErrTooLarge
// and ErrInvalid.
var (
	// ErrNotLeader: the peer that was asked does not lead. Nothing was appended.
	ErrNotLeader = errors.New("raftstore: this peer does not lead")
	// ErrUnreachable: the peer could not be asked, or did not answer. What was
	// asked may have happened.
	ErrUnreachable = errors.New("raftstore: peer cannot be reached")
)

// Handler is what a peer answers to others: the other end of Peers. *Store
// implements it.
type Handler interface {
	Forwarded(ctx context.Context, batch Batch) error
	ServeReadIndex(ctx context.Context) (uint64, error)
	ServeKeepAlive(ctx context.Context, id mvcc.LeaseID) (time.Duration, error)
	ServeLeaseRemaining(ctx context.Context, id mvcc.LeaseID) (time.Duration, error)
	// PeerEnded hears that the process of a peer is known to have ended. It
	// must not block.
	PeerEnded(serverID string)
}
