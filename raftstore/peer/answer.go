package peer

import (
	"bufio"
	"errors"
	"io"
	"time"

	"github.com/hashicorp/raft"
)

// answerTime bounds the writing of an answer.
const answerTime = 10 * time.Second

// maxFailure is how much of an error's text goes to a peer.
const maxFailure = 4 << 10

// serve answers the requests on an accepted connection until it ends.
func (t *transport) serve(c *conn) {
	defer c.Close()
	in := newFrames(c, t.net.budget)
	defer in.release()
	var out []byte
	for {
		_ = c.SetReadDeadline(time.Time{})
		k, body, err := in.next()
		if err != nil {
			t.broken(c, err)
			if !c.closed.Load() {
				t.net.missed(c.peer)
			}
			return
		}
		req, err := decodeRequest(k, body)
		if err != nil {
			t.broken(c, err)
			return
		}
		answer, ok := t.process(req, in.r, c)
		if !ok {
			return
		}
		if out, err = encodeAnswer(newFrame(out), answer); err != nil {
			t.broken(c, err)
			return
		}
		_ = c.SetWriteDeadline(time.Now().Add(answerTime))
		if _, err := c.Write(out); err != nil {
			return
		}
		in.release()
		if k == kindSnapshot {
			return // what is left of the stream is not known to be a frame
		}
	}
}

// broken logs a peer that does not keep to the protocol. Connections that
// merely end are everyday.
func (t *transport) broken(c *conn, err error) {
	if errors.Is(err, ErrMalformed) || errors.Is(err, ErrTooLarge) {
		t.net.refuse.refused(c.peer, "Raft message", err)
	}
}

// process hands a request to Raft and waits for what it says; false when the
// transport has ended.
func (t *transport) process(req any, r *bufio.Reader, c *conn) (raft.RPCResponse, bool) {
	answer := make(chan raft.RPCResponse, 1)
	rpc := raft.RPC{Command: req, RespChan: answer}
	switch req := req.(type) {
	case *raft.InstallSnapshotRequest:
		// Buffered bytes first, then the connection, each piece in its time.
		head := io.LimitReader(r, int64(r.Buffered()))
		rpc.Reader = io.LimitReader(io.MultiReader(head, pieces{c}), req.Size)
	case *raft.AppendEntriesRequest:
		if beat := t.heartbeatHandler(); beat != nil && isHeartbeat(req) {
			beat(rpc)
			return t.wait(answer)
		}
	}
	select {
	case t.requests <- rpc:
	case <-t.done:
		return raft.RPCResponse{}, false
	}
	return t.wait(answer)
}

func (t *transport) wait(answer <-chan raft.RPCResponse) (raft.RPCResponse, bool) {
	select {
	case a := <-answer:
		return a, true
	case <-t.done:
		return raft.RPCResponse{}, false
	}
}

// encodeAnswer appends a whole frame to b, which holds its empty head.
func encodeAnswer(b []byte, a raft.RPCResponse) ([]byte, error) {
	if a.Error != nil {
		text := a.Error.Error()
		return endFrame(append(b, text[:min(len(text), maxFailure)]...), kindFailed)
	}
	b, err := encodeResponse(b, a.Response)
	if err != nil {
		return nil, err
	}
	return endFrame(b, kindDone)
}
