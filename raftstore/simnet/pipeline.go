package simnet

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// window is how many unanswered requests a pipeline holds.
const window = 8

// pipeline is one connection: it keeps the order of messages and breaks as a whole.
type pipeline struct {
	from *Node
	to   *Node
	sent chan *flight
	back chan *flight
	done chan raft.AppendFuture
	stop chan struct{} // closed by Close
	once sync.Once
	torn chan struct{} // closed at the first answer that is missing
	last time.Time     // when the previous request arrives; used by the sender only
}

// flight is one request on a pipeline. It implements raft.AppendFuture.
type flight struct {
	start time.Time
	args  *raft.AppendEntriesRequest
	resp  *raft.AppendEntriesResponse
	copy  *raft.AppendEntriesRequest // the copy that arrives
	lost  bool
	due   time.Time // when the request, later the answer, arrives
	got   any
	ready chan struct{}
	err   error
}

// Error implements raft.Future.
func (f *flight) Error() error { <-f.ready; return f.err }

// Start implements raft.AppendFuture.
func (f *flight) Start() time.Time { return f.start }

// Request implements raft.AppendFuture.
func (f *flight) Request() *raft.AppendEntriesRequest { return f.args }

// Response implements raft.AppendFuture.
func (f *flight) Response() *raft.AppendEntriesResponse { return f.resp }

// AppendEntriesPipeline implements raft.Transport.
func (t transport) AppendEntriesPipeline(_ raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	q := t.net.node(string(to))
	if q == nil {
		return nil, errRefused
	}
	if t.isDead() {
		return nil, errDead
	}
	p := &pipeline{from: t.Node, to: q, sent: make(chan *flight, window), back: make(chan *flight, window),
		done: make(chan raft.AppendFuture, window), stop: make(chan struct{}), torn: make(chan struct{})}
	t.net.work.Go(p.carry)
	t.net.work.Go(p.answer)
	return p, nil
}

// AppendEntries implements raft.AppendPipeline.
func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if obs := p.from.net.cfg.Observe; obs != nil {
		obs(p.from.id, p.to.id, args)
	}
	if err := p.from.Awake(context.Background()); err != nil {
		return nil, err
	}
	fate := p.from.net.draw(p.from.id, p.to.id)
	now := time.Now()
	if at := now.Add(fate.delay); at.After(p.last) {
		p.last = at
	}
	f := &flight{start: now, args: args, resp: resp, copy: copyAppend(args), lost: fate.lost, due: p.last, ready: make(chan struct{})}
	select {
	case <-p.stop:
		return nil, raft.ErrPipelineShutdown
	default:
	}
	select {
	case p.sent <- f:
		return f, nil
	case <-p.stop:
		return nil, raft.ErrPipelineShutdown
	case <-p.torn:
		return nil, errReset
	case <-p.from.dead:
		return nil, errDead
	}
}

// Consumer implements raft.AppendPipeline.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.done }

// Close implements raft.AppendPipeline. Requests that were sent may still arrive.
func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.stop) })
	return nil
}

// carry delivers the requests, one after the other. After Close it delivers the requests that were sent before.
func (p *pipeline) carry() {
	defer close(p.back)
	for {
		var f *flight
		select {
		case f = <-p.sent:
		default:
			select {
			case f = <-p.sent:
			case <-p.stop:
				return
			case <-p.from.dead:
				return
			}
		}
		time.Sleep(time.Until(f.due))
		if !f.lost {
			f.err = p.serve(f)
		} else {
			f.err = errLost
		}
		failed := f.err != nil
		select {
		case p.back <- f:
		case <-p.stop:
		case <-p.from.dead:
		}
		if failed {
			return
		}
	}
}

func (p *pipeline) serve(f *flight) (err error) {
	if p.to.Awake(context.Background()) != nil || p.to.isDead() {
		return errReset
	}
	if f.got, err = p.to.consume(raft.RPC{Command: f.copy}); err != nil {
		return err
	}
	if err := p.to.Awake(context.Background()); err != nil {
		return errReset
	}
	fate := p.to.net.draw(p.to.id, p.from.id)
	if fate.lost {
		return errLost
	}
	f.due = time.Now().Add(fate.delay)
	return nil
}

// answer delivers the answers in order, up to the first that is missing.
func (p *pipeline) answer() {
	defer close(p.torn)
	for f := range p.back {
		if f.err != nil {
			p.sleep(p.from.net.cfg.Timeout)
			p.finish(f)
			return
		}
		p.sleep(time.Until(f.due))
		if p.from.Awake(context.Background()) == nil {
			*f.resp = *f.got.(*raft.AppendEntriesResponse)
		} else {
			f.err = errDead
		}
		p.finish(f)
	}
}

func (p *pipeline) finish(f *flight) {
	close(f.ready)
	select {
	case p.done <- f:
	case <-p.stop:
	case <-p.from.dead:
	}
}

// sleep waits, unless the pipeline ends before.
func (p *pipeline) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.stop:
	case <-p.from.dead:
	}
}
