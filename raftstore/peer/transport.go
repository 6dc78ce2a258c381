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

// transport is Raft's transport over connections of the network: a connection carries one request at a time, or a pipeline of appends.
// Addresses are server IDs.
type transport struct {
	net      *Network
	requests chan raft.RPC
	done     chan struct{}
	once     sync.Once

	mu        sync.Mutex
	idle      map[string][]*outConn // by peer, most recently used last
	heartbeat func(raft.RPC)
}

var (
	_ raft.Transport   = (*transport)(nil)
	_ raft.WithPreVote = (*transport)(nil)
	_ raft.WithClose   = (*transport)(nil)
)

// outConn is a dialed connection and its buffers.
type outConn struct {
	*conn
	in   *frames
	out  []byte
	used bool // has carried a request before
}

// Transport returns Raft's transport. Every call returns the same one until Raft closes it at its shutdown; the next call then makes a new
// one.
func (n *Network) Transport() raft.Transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.raft == nil {
		n.raft = &transport{net: n, requests: make(chan raft.RPC), done: make(chan struct{}), idle: map[string][]*outConn{}}
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
		t.idle = map[string][]*outConn{}
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

// LocalAddr implements raft.Transport: the address is the server's ID.
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

// AppendEntries implements raft.Transport. It may send fewer entries than args holds, and then shortens args.Entries; Raft goes on from
// the last entry.
func (t *transport) AppendEntries(id raft.ServerID, _ raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if isHeartbeat(args) {
		return t.call(id, args, resp, t.net.cfg.HeartbeatTimeout)
	}
	truncateEntries(args, softFrame)
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

// call sends a request to id and waits for the answer. An idle connection that turns out to be dead is replaced once: every request of
// Raft may be made twice.
func (t *transport) call(id raft.ServerID, req, resp any, timeout time.Duration) error {
	l, err := t.takeConn(string(id))
	if err != nil {
		return err
	}
	err = l.roundTrip(req, resp, timeout)
	if err != nil && l.used && dead(err) {
		t.closeIdle(string(id))
		if l, err = t.takeConn(string(id)); err != nil {
			return err
		}
		err = l.roundTrip(req, resp, timeout)
	}
	if answered := (*answerError)(nil); err != nil && !errors.As(err, &answered) {
		_ = l.Close()
		return err
	}
	t.releaseConn(l)
	return err
}

// dead reports whether err says that the other end of a connection is gone, and not merely slow.
func dead(err error) bool {
	return !errors.Is(err, os.ErrDeadlineExceeded) &&
		(errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, new(*net.OpError)) || errors.Is(err, net.ErrClosed))
}

// takeConn returns an idle connection to a peer, or a new one.
func (t *transport) takeConn(id string) (*outConn, error) {
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
		t.net.dropStale(id)
	}
	c, err := t.net.dial(context.Background(), id, ALPNRaft)
	if err != nil {
		return nil, err
	}
	if t.closed() {
		_ = c.Close()
		return nil, ErrClosed
	}
	return &outConn{conn: c, in: newFrames(c, nil)}, nil
}

// releaseConn keeps a connection as idle; its last answer must have been read to its end.
func (t *transport) releaseConn(l *outConn) {
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

// closeIdle closes the idle connections to a peer.
func (t *transport) closeIdle(id string) {
	t.mu.Lock()
	kept := t.idle[id]
	delete(t.idle, id)
	t.mu.Unlock()
	for _, l := range kept {
		_ = l.Close()
	}
}

// answerError is an error that a peer answered with; the connection still works.
type answerError struct{ text string }

// Error implements error.
func (e *answerError) Error() string { return e.text }

func (l *outConn) roundTrip(req, resp any, timeout time.Duration) error {
	_ = l.SetDeadline(time.Now().Add(timeout))
	if err := l.send(req); err != nil {
		return err
	}
	return l.receive(resp)
}

func (l *outConn) send(req any) error {
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

func (l *outConn) receive(resp any) error {
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

// InstallSnapshot implements raft.Transport. It bounds the time of each piece and not of the whole, and then waits up to installTime until
// the snapshot is installed.
func (t *transport) InstallSnapshot(id raft.ServerID, _ raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	c, err := t.net.dial(context.Background(), string(id), ALPNRaft)
	if err != nil {
		return err
	}
	defer c.Close()
	l := &outConn{conn: c, in: newFrames(c, nil)}
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
	// pieceTime bounds the time in which a piece of a snapshot is sent or received, the receiver's disk included.
	pieceTime = 30 * time.Second
	// installTime bounds the wait for a peer that has received the whole snapshot and loads it.
	installTime = 10 * time.Minute
)

// pieces extends the deadline with every piece.
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
