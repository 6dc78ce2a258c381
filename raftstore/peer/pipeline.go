package peer

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// AppendEntriesPipeline implements raft.Transport: at most MaxInFlight appends are under way at once. An append that fails ends the
// pipeline. Raft learns that from its next append and not from Consumer, because it counts every answer from there as a contact with the
// follower.
func (t *transport) AppendEntriesPipeline(id raft.ServerID, _ raft.ServerAddress) (raft.AppendPipeline, error) {
	l, err := t.takeConn(string(id))
	if err != nil {
		return nil, err
	}
	_ = l.SetDeadline(time.Time{})
	p := &pipeline{
		conn: l, timeout: t.net.cfg.AppendTimeout, closed: make(chan struct{}), ended: make(chan struct{}),
		// Besides the queued appends, one is being answered and one is being sent.
		sent: make(chan *future, t.net.cfg.MaxInFlight-2), out: make(chan raft.AppendFuture, t.net.cfg.MaxInFlight-2),
	}
	go p.receiveAll()
	return p, nil
}

type pipeline struct {
	conn    *outConn
	timeout time.Duration
	sent    chan *future
	out     chan raft.AppendFuture
	closed  chan struct{}
	ended   chan struct{} // the receiver has ended
	once    sync.Once
}

// AppendEntries implements raft.AppendPipeline. Like transport.AppendEntries it may shorten args.Entries.
func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	truncateEntries(args, softFrame)
	f := &future{start: time.Now(), req: args, resp: resp, done: make(chan struct{})}
	_ = p.conn.SetWriteDeadline(f.start.Add(p.timeout))
	if err := p.conn.send(args); err != nil {
		return nil, err
	}
	select {
	case p.sent <- f:
		return f, nil
	case <-p.ended:
		return nil, raft.ErrPipelineShutdown
	case <-p.closed:
		return nil, raft.ErrPipelineShutdown
	}
}

// receiveAll receives the answers, in the order of the requests.
func (p *pipeline) receiveAll() {
	defer close(p.ended)
	for {
		select {
		case f := <-p.sent:
			_ = p.conn.SetReadDeadline(time.Now().Add(p.timeout))
			f.err = p.conn.receive(f.resp)
			close(f.done)
			if f.err != nil {
				_ = p.conn.Close()
				return
			}
			select {
			case p.out <- f:
			case <-p.closed:
				return
			}
		case <-p.closed:
			return
		}
	}
}

// Consumer implements raft.AppendPipeline.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.out }

// Close implements raft.AppendPipeline. It returns when the pipeline's goroutine has ended.
func (p *pipeline) Close() error {
	p.once.Do(func() {
		close(p.closed)
		_ = p.conn.Close()
	})
	<-p.ended
	return nil
}

// future is an append under way.
type future struct {
	start time.Time
	req   *raft.AppendEntriesRequest
	resp  *raft.AppendEntriesResponse
	done  chan struct{}
	err   error // set before done is closed
}

// Error implements raft.Future: it waits for the answer.
func (f *future) Error() error {
	<-f.done
	return f.err
}

// Start implements raft.AppendFuture.
func (f *future) Start() time.Time { return f.start }

// Request implements raft.AppendFuture.
func (f *future) Request() *raft.AppendEntriesRequest { return f.req }

// Response implements raft.AppendFuture.
func (f *future) Response() *raft.AppendEntriesResponse { return f.resp }
