package raftstore

import (
	"sync"

	"github.com/hashicorp/raft"
)

// acks is a transport by which Raft hears that another server has entries on
// disk once this server has them too: see tail.
//
//	Raft ── AppendEntries, up to entry 9 ──────────▶ other server
//	     ◀─ tail: is 9 on this disk? ◀─ "success" ───┘
type acks struct {
	ballot
	disk *disk // nil in memory
}

// AppendEntries implements raft.Transport.
func (a acks) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := a.Transport.AppendEntries(id, target, args, resp)
	if n := len(args.Entries); err == nil && a.disk != nil && n > 0 {
		err = a.disk.tail.await(args.Entries[n-1].Index, nil, false)
	}
	return err
}

// AppendEntriesPipeline implements raft.Transport.
func (a acks) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	inner, err := a.Transport.AppendEntriesPipeline(id, target)
	if err != nil || a.disk == nil {
		return inner, err
	}
	p := &ackPipeline{AppendPipeline: inner, tail: a.disk.tail,
		out: make(chan raft.AppendFuture), closed: make(chan struct{}), ended: make(chan struct{})}
	go p.pass()
	return p, nil
}

// ackPipeline is a pipeline whose answers wait, in their order.
type ackPipeline struct {
	raft.AppendPipeline
	tail   *tail
	out    chan raft.AppendFuture
	closed chan struct{}
	ended  chan struct{} // pass has ended
	once   sync.Once
}

// Consumer implements raft.AppendPipeline.
func (p *ackPipeline) Consumer() <-chan raft.AppendFuture { return p.out }

// Close implements raft.AppendPipeline.
func (p *ackPipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	<-p.ended
	return p.AppendPipeline.Close()
}

func (p *ackPipeline) pass() {
	defer close(p.ended)
	in := p.AppendPipeline.Consumer()
	for {
		var f raft.AppendFuture
		select {
		case f = <-in:
		case <-p.closed:
			return
		}
		// While the disk refuses, this server steps down, which closes p.
		if n := len(f.Request().Entries); n > 0 && p.tail.await(f.Request().Entries[n-1].Index, p.closed, true) != nil {
			return
		}
		select {
		case p.out <- f:
		case <-p.closed:
			return
		}
	}
}
