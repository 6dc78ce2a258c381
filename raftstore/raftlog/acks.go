package raftlog

import (
	"sync"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/raftfix"
)

// AckTransport is a transport that delays a follower's acknowledgement of entries until this server has them on disk too: see
// overlap.
//
//	Raft ── AppendEntries, up to entry 9 ─────────────▶ follower
//	     ◀─ overlap: is 9 on this disk? ◀─ "success" ───┘
type AckTransport struct {
	raftfix.Transport
	store *Store // nil: the log is in memory, and nothing is delayed
}

// NewAckTransport returns t with delayed acknowledgements. s is nil for a log in memory.
func NewAckTransport(t raftfix.Transport, s *Store) AckTransport { return AckTransport{t, s} }

// AppendEntries implements raft.Transport.
func (a AckTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := a.Transport.AppendEntries(id, target, args, resp)
	if n := len(args.Entries); err == nil && a.store != nil && n > 0 {
		err = a.store.overlap.await(args.Entries[n-1].Index, nil, failFast)
	}
	return err
}

// AppendEntriesPipeline implements raft.Transport.
func (a AckTransport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	inner, err := a.Transport.AppendEntriesPipeline(id, target)
	if err != nil || a.store == nil {
		return inner, err
	}
	p := &ackPipeline{AppendPipeline: inner, overlap: a.store.overlap,
		out: make(chan raft.AppendFuture), closed: make(chan struct{}), ended: make(chan struct{})}
	go p.forward()
	return p, nil
}

// ackPipeline is a pipeline whose answers are delayed, in their order.
type ackPipeline struct {
	raft.AppendPipeline
	overlap *overlap
	out     chan raft.AppendFuture
	closed  chan struct{}
	ended   chan struct{} // closed when forward has ended
	once    sync.Once
}

// Consumer implements raft.AppendPipeline.
func (p *ackPipeline) Consumer() <-chan raft.AppendFuture { return p.out }

// Close implements raft.AppendPipeline.
func (p *ackPipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	<-p.ended
	return p.AppendPipeline.Close()
}

func (p *ackPipeline) forward() {
	defer close(p.ended)
	in := p.AppendPipeline.Consumer()
	for {
		var f raft.AppendFuture
		select {
		case f = <-in:
		case <-p.closed:
			return
		}
		// A disk that refuses ends the leadership, and Raft then closes p.
		if n := len(f.Request().Entries); n > 0 && p.overlap.await(f.Request().Entries[n-1].Index, p.closed, waitLong) != nil {
			return
		}
		select {
		case p.out <- f:
		case <-p.closed:
			return
		}
	}
}
