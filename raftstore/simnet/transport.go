package simnet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"

	"github.com/hashicorp/raft"
)

// snapshotPatience is how many times longer a sender waits for a snapshot to be
// installed than for another answer.
const snapshotPatience = 10

// transport is the Raft side of a Node.
type transport struct{ *Node }

var (
	_ raft.Transport   = transport{}
	_ raft.WithPreVote = transport{}
	_ raft.WithClose   = transport{}
)

// Transport carries Raft for this process. Closing it does nothing: the
// process is off the network when it is killed.
func (p *Node) Transport() raft.Transport { return transport{p} }

// Close implements raft.WithClose.
func (transport) Close() error { return nil }

// Consumer implements raft.Transport.
func (t transport) Consumer() <-chan raft.RPC { return t.consumer }

// LocalAddr implements raft.Transport.
func (t transport) LocalAddr() raft.ServerAddress { return raft.ServerAddress(t.id) }

// EncodePeer implements raft.Transport.
func (transport) EncodePeer(_ raft.ServerID, addr raft.ServerAddress) []byte { return []byte(addr) }

// DecodePeer implements raft.Transport.
func (transport) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

// SetHeartbeatHandler implements raft.Transport.
func (t transport) SetHeartbeatHandler(fn func(raft.RPC)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heartbeat = fn
}

// AppendEntries implements raft.Transport.
func (t transport) AppendEntries(_ raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	return unary(t, to, 1, raft.RPC{Command: copyAppend(args)}, resp)
}

// RequestVote implements raft.Transport.
func (t transport) RequestVote(_ raft.ServerID, to raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	c := *args
	return unary(t, to, 1, raft.RPC{Command: &c}, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (t transport) RequestPreVote(_ raft.ServerID, to raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	c := *args
	return unary(t, to, 1, raft.RPC{Command: &c}, resp)
}

// TimeoutNow implements raft.Transport.
func (t transport) TimeoutNow(_ raft.ServerID, to raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	c := *args
	return unary(t, to, 1, raft.RPC{Command: &c}, resp)
}

// InstallSnapshot implements raft.Transport. Where other requests would be
// lost, a snapshot breaks off in the middle.
func (t transport) InstallSnapshot(_ raft.ServerID, to raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	c := *args
	b, err := io.ReadAll(data)
	if err != nil {
		return err
	}
	rpc := raft.RPC{Command: &c, Reader: bytes.NewReader(b)}
	if f := t.net.draw(t.id, string(to)); f.lost && len(b) > 0 {
		rpc.Reader = io.MultiReader(bytes.NewReader(b[:int(f.again)%len(b)]), broken{})
	}
	return unary(t, to, snapshotPatience, rpc, resp)
}

// broken is the end of a stream whose connection broke.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// unary sends one Raft request and fills resp with the answer.
func unary[T any](t transport, to raft.ServerAddress, patience int, rpc raft.RPC, resp *T) error {
	if t.net.cfg.Observe != nil {
		t.net.cfg.Observe(t.id, string(to), rpc.Command)
	}
	f := t.net.draw(t.id, string(to))
	v, err := t.call(context.Background(), string(to), f, time.Duration(patience)*t.net.cfg.Timeout, func(q *Node) (any, error) {
		return q.consume(rpc)
	})
	if err != nil {
		return err
	}
	*resp = *v.(*T)
	return nil
}

// consume hands a request to the Raft of this process and returns its answer.
func (p *Node) consume(rpc raft.RPC) (any, error) {
	back := make(chan raft.RPCResponse, 1)
	rpc.RespChan = back
	if fn := p.heartbeatHandler(); fn != nil && isHeartbeat(rpc.Command) {
		fn(rpc)
	} else {
		select {
		case p.consumer <- rpc:
		case <-p.dead:
			return nil, errReset
		}
	}
	select {
	case r := <-back:
		if r.Error != nil {
			return nil, errors.New(r.Error.Error()) // as it comes off a wire
		}
		if p.net.cfg.Answered != nil && !p.isDead() {
			p.net.cfg.Answered(p.id, rpc.Command, r.Response)
		}
		return r.Response, nil
	case <-p.dead:
		return nil, errReset
	}
}

func (p *Node) heartbeatHandler() func(raft.RPC) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heartbeat
}

// isHeartbeat knows the empty request that passes by the log's queue.
func isHeartbeat(command any) bool {
	a, ok := command.(*raft.AppendEntriesRequest)
	return ok && a.Term != 0 && a.PrevLogEntry == 0 && a.PrevLogTerm == 0 && len(a.Entries) == 0 && a.LeaderCommitIndex == 0
}

// copyAppend copies what the sender may use again while the message travels.
func copyAppend(args *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	c := *args
	c.Entries = make([]*raft.Log, len(args.Entries))
	logs := make([]raft.Log, len(args.Entries))
	for i, l := range args.Entries {
		logs[i] = *l
		c.Entries[i] = &logs[i]
	}
	return &c
}
