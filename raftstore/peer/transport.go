package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// maxIdle is how many unused connections to one peer are kept.
const maxIdle = 4

// transport is Raft over connections of the network: one request at a time on a
// connection, or a pipeline of appends. Addresses are server IDs.
type transport struct {
	net      *Network
	requests chan raft.RPC
	done     chan struct{}
	once     sync.Once

	mu        sync.Mutex
	idle      map[string][]*line // by peer, most recently used last
	heartbeat func(raft.RPC)
}

var (
	_ raft.Transport   = (*transport)(nil)
	_ raft.WithPreVote = (*transport)(nil)
	_ raft.WithClose   = (*transport)(nil)
)

// line is a dialed connection and its buffers.
type line struct {
	*conn
	in   *frames
	out  []byte
	used bool // has carried a request before
}

// Transport is Raft's way to the peers. Raft closes it when it shuts down; the
// next call after that makes a new one. Before, every call gives the same.
func (n *Network) Transport() raft.Transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.raft == nil {
		n.raft = &transport{net: n, requests: make(chan raft.RPC), done: make(chan struct{}), idle: map[string][]*line{}}
		if n.over.Load() {
			close(n.raft.done)
			n.raft.once.Do(func() {})
		}
	}
	return n.raft
}

// Close ends the transport and all its connections.
func (t *transport) Close() error {
	t.once.Do(func() {
		close(t.done)
		t.net.mu.Lock()
		if t.net.raft == t {
			t.net.raft = nil
		}
		t.net.mu.Unlock()
		t.mu.Lock()
		t.idle = map[string][]*line{}
		t.mu.Unlock()
		t.net.conns.dropAll(func(c *conn) bool { return c.alpn == ALPNRaft })
	})
	return nil
}

func (t *transport) closed() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// Consumer implements raft.Transport.
func (t *transport) Consumer() <-chan raft.RPC { return t.requests }

// LocalAddr is the server's ID.
func (t *transport) LocalAddr() raft.ServerAddress { return raft.ServerAddress(t.net.cfg.ServerID) }

// EncodePeer implements raft.Transport: an address is an ID.
func (t *transport) EncodePeer(id raft.ServerID, _ raft.ServerAddress) []byte { return []byte(id) }

// DecodePeer implements raft.Transport.
func (t *transport) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

// SetHeartbeatHandler implements raft.Transport.
func (t *transport) SetHeartbeatHandler(f func(raft.RPC)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heartbeat = f
}

func (t *transport) heartbeatHandler() func(raft.RPC) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.heartbeat
}

// AppendEntries implements raft.Transport. It may send fewer entries than args
// holds and shortens args.Entries to what it sent; Raft goes on from there.
func (t *transport) AppendEntries(id raft.ServerID, _ raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if isHeartbeat(args) {
		return t.call(id, args, resp, t.net.cfg.HeartbeatTimeout)
	}
	cut(args, softFrame)
	return t.call(id, args, resp, t.net.cfg.AppendTimeout)
}

// RequestVote implements raft.Transport.
func (t *transport) RequestVote(id raft.ServerID, _ raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return t.call(id, args, resp, t.net.cfg.AppendTimeout)
}

// RequestPreVote implements raft.WithPreVote.
func (t *transport) RequestPreVote(id raft.ServerID, _ raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return t.call(id, args, resp, t.net.cfg.HeartbeatTimeout)
}

// TimeoutNow implements raft.Transport.
func (t *transport) TimeoutNow(id raft.ServerID, _ raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return t.call(id, args, resp, t.net.cfg.HeartbeatTimeout)
}

// call asks id and waits for the answer. A kept connection that turns out to be
// dead is replaced once: every request of Raft may be made twice.
func (t *transport) call(id raft.ServerID, req, resp any, timeout time.Duration) error {
	l, err := t.get(string(id))
	if err != nil {
		return err
	}
	err = l.roundTrip(req, resp, timeout)
	if err != nil && l.used && dead(err) {
		t.forget(string(id))
		if l, err = t.get(string(id)); err != nil {
			return err
		}
		err = l.roundTrip(req, resp, timeout)
	}
	if answered := (*answerError)(nil); err != nil && !errors.As(err, &answered) {
		_ = l.Close()
		return err
	}
	t.put(l)
	return err
}

// dead tells a connection whose other end is gone from one that is slow.
func dead(err error) bool {
	return !errors.Is(err, os.ErrDeadlineExceeded) &&
		(errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, new(*net.OpError)) || errors.Is(err, net.ErrClosed))
}

// get is a kept connection to a peer or a new one.
func (t *transport) get(id string) (*line, error) {
	if t.closed() {
		return nil, ErrClosed
	}
	stale := false
	for {
		t.mu.Lock()
		kept := t.idle[id]
		if len(kept) == 0 {
			t.mu.Unlock()
			break
		}
		l := kept[len(kept)-1]
		t.idle[id] = kept[:len(kept)-1]
		t.mu.Unlock()
		if t.net.current(l.conn) {
			return l, nil
		}
		stale = true
		_ = l.Close()
	}
	if stale {
		t.net.renew(id)
	}
	c, err := t.net.dial(context.Background(), id, ALPNRaft)
	if err != nil {
		return nil, err
	}
	if t.closed() {
		_ = c.Close()
		return nil, ErrClosed
	}
	return &line{conn: c, in: newFrames(c, nil)}, nil
}

// put keeps a connection whose last answer was read to its end.
func (t *transport) put(l *line) {
	l.used = true
	_ = l.SetDeadline(time.Time{})
	if cap(l.out) > keptFrame {
		l.out = nil
	}
	t.mu.Lock()
	keep := !t.closed() && !l.closed.Load() && len(t.idle[l.peer]) < maxIdle
	if keep {
		t.idle[l.peer] = append(t.idle[l.peer], l)
	}
	t.mu.Unlock()
	if !keep {
		_ = l.Close()
	}
}

// forget closes the kept connections to a peer.
func (t *transport) forget(id string) {
	t.mu.Lock()
	kept := t.idle[id]
	delete(t.idle, id)
	t.mu.Unlock()
	for _, l := range kept {
		_ = l.Close()
	}
}

// answerError is a peer's own words: the connection is fine.
type answerError struct{ text string }

// Error implements error.
func (e *answerError) Error() string { return e.text }

func (l *line) roundTrip(req, resp any, timeout time.Duration) error {
	_ = l.SetDeadline(time.Now().Add(timeout))
	if err := l.send(req); err != nil {
		return err
	}
	return l.receive(resp)
}

func (l *line) send(req any) error {
	k, b, err := encodeRequest(newFrame(l.out), req)
	if err != nil {
		return err
	}
	l.out = b
	if b, err = endFrame(b, k); err != nil {
		return fmt.Errorf("%w (for %s)", err, l.peer)
	}
	_, err = l.Write(b)
	return err
}

func (l *line) receive(resp any) error {
	k, body, err := l.in.next()
	if err != nil {
		return err
	}
	switch k {
	case kindDone:
		return decodeResponse(body, resp)
	case kindFailed:
		return &answerError{string(body)}
	}
	return fmt.Errorf("%w: answer of kind %d", ErrMalformed, k)
}

// InstallSnapshot implements raft.Transport. It has no limit on the whole, only
// on each piece, and then waits as long as a snapshot takes to install.
func (t *transport) InstallSnapshot(id raft.ServerID, _ raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	c, err := t.net.dial(context.Background(), string(id), ALPNRaft)
	if err != nil {
		return err
	}
	defer c.Close()
	l := &line{conn: c, in: newFrames(c, nil)}
	_ = l.SetDeadline(time.Now().Add(pieceTime))
	if err := l.send(args); err != nil {
		return err
	}
	if _, err := io.CopyBuffer(pieces{c}, io.LimitReader(data, args.Size), make([]byte, snapshotPiece)); err != nil {
		return fmt.Errorf("peer: send snapshot to %s: %w", id, err)
	}
	_ = l.SetDeadline(time.Now().Add(installTime))
	return l.receive(resp)
}

const (
	snapshotPiece = 256 << 10
	// pieceTime bounds the time one piece of a snapshot takes to go or come,
	// the receiver's disk included.
	pieceTime = 30 * time.Second
	// installTime bounds the wait for a peer that has the whole snapshot and
	// loads it.
	installTime = 10 * time.Minute
)

// pieces moves the deadline with every piece.
type pieces struct{ c *conn }

// Write implements io.Writer.
func (p pieces) Write(b []byte) (int, error) {
	_ = p.c.SetDeadline(time.Now().Add(pieceTime))
	return p.c.Write(b)
}

// Read implements io.Reader.
func (p pieces) Read(b []byte) (int, error) {
	_ = p.c.SetReadDeadline(time.Now().Add(pieceTime))
	return p.c.Read(b)
}

func isHeartbeat(r *raft.AppendEntriesRequest) bool {
	return r.Term != 0 && (len(r.Addr) > 0 || len(r.Leader) > 0) &&
		r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && len(r.Entries) == 0 && r.LeaderCommitIndex == 0
}
