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

// maxFailure bounds the text of an error that is sent to a peer, in bytes.
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
			t.logViolation(c, err)
			if !c.closed.Load() {
				t.net.probePeer(c.peer)
			}
			return
		}
		req, err := decodeRequest(k, body)
		if err != nil {
			t.logViolation(c, err)
			return
		}
		answer, ok := t.process(req, in.r, c)
		if !ok {
			return
		}
		if out, err = encodeAnswer(newFrame(out), answer); err != nil {
			t.logViolation(c, err)
			return
		}
		_ = c.SetWriteDeadline(time.Now().Add(answerTime))
		if _, err := c.Write(out); err != nil {
			return
		}
		in.release()
		if k == kindSnapshot {
			return // after a snapshot the next byte of the stream may not begin a frame
		}
	}
}

// logViolation logs a peer that violates the protocol. It does not log connections that merely end.
func (t *transport) logViolation(c *conn, err error) {
	if errors.Is(err, ErrMalformed) || errors.Is(err, ErrTooLarge) {
		t.net.refuse.refused(c.peer, "Raft message", err)
	}
}

// process hands a request to Raft and returns its answer; false when the transport has ended.
func (t *transport) process(req any, r *bufio.Reader, c *conn) (raft.RPCResponse, bool) {
	answer := make(chan raft.RPCResponse, 1)
	rpc := raft.RPC{Command: req, RespChan: answer}
	switch req := req.(type) {
	case *raft.InstallSnapshotRequest:
		// The snapshot begins in the buffer and goes on on the connection, with a deadline for each piece.
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

// encodeAnswer completes the frame in b, which holds an empty head, with an answer.
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
