package raftstore

import (
	"context"
	"time"

	"github.com/balsahq/balsa/raftstore/consensus"
	"github.com/balsahq/balsa/raftstore/mvcc"
)

// Peers carries requests from this peer to another. The store never dials: the implementation knows the identity and the address
// of each peer. It also keeps errors across the wire: errors.Is must find ErrNotLeader, ErrUnreachable, ErrDiskFull,
// ErrDiskReadOnly, ErrDisk, ErrClosed, ErrLeaseNotFound, ErrTooLarge and ErrInvalid on the asking side.
type Peers interface {
	// Forward and ReadIndex: see the package consensus.
	consensus.Peers
	// KeepAlive renews a lease with the leader and returns its full time.
	KeepAlive(ctx context.Context, to string, id mvcc.LeaseID) (time.Duration, error)
	// LeaseRemaining asks the leader how long a lease still lives.
	LeaseRemaining(ctx context.Context, to string, id mvcc.LeaseID) (time.Duration, error)
}

// Batch is a run of commands of one origin, encoded; see [Store.Forwarded].
type Batch = consensus.Batch

// Handler answers the requests that other peers send through their Peers. *Store implements it.
type Handler interface {
	Forwarded(ctx context.Context, batch Batch) error
	ServeReadIndex(ctx context.Context) (uint64, error)
	ServeKeepAlive(ctx context.Context, id mvcc.LeaseID) (time.Duration, error)
	ServeLeaseRemaining(ctx context.Context, id mvcc.LeaseID) (time.Duration, error)
	// PeerEnded is called when the process of a peer is known to have ended. It must not block.
	PeerEnded(serverID string)
}
