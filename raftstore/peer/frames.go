package peer

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"
)

// kind is the first byte of a frame: the kind of a request or of an answer.
type kind byte

const (
	kindAppend kind = iota + 1
	kindVote
	kindPreVote
	kindTimeoutNow
	kindSnapshot // followed by the snapshot, unframed
	kindDone     // answer: a response follows
	kindFailed   // answer: a text follows
)

const (
	frameHead = 5        // kind, and the length of the message: 4 bytes, big endian
	softFrame = 4 << 20  // a request takes no more entries once it is this large
	maxFrame  = 32 << 20 // bytes of one frame's message: one entry is never larger
	keptFrame = 256 << 10
	// framePiece is by how much the memory of a frame grows as its bytes arrive.
	framePiece = 1 << 20
	// smallFrame is the size up to which a frame needs no share of the budget.
	smallFrame = 64 << 10
	// frameTime bounds the time in which the next piece of a frame must arrive.
	frameTime = 10 * time.Second
	readBuf   = 64 << 10
)

// newFrame returns an empty frame in buf's memory. The caller appends a message and completes the frame with endFrame.
func newFrame(buf []byte) []byte { return append(buf[:0], make([]byte, frameHead)...) }

// endFrame writes the head of the frame in b.
func endFrame(b []byte, k kind) ([]byte, error) {
	n := len(b) - frameHead
	if n > maxFrame {
		return nil, fmt.Errorf("%w: %d bytes, at most %d allowed", ErrTooLarge, n, maxFrame)
	}
	b[0] = byte(k)
	binary.BigEndian.PutUint32(b[1:], uint32(n))
	return b, nil
}

// frames reads frames from a connection. The message it returns is valid until
// the next call.
type frames struct {
	conn   *conn
	r      *bufio.Reader
	buf    []byte
	budget *semaphore.Weighted // nil: not bounded beyond maxFrame
	held   int64
}

func newFrames(c *conn, budget *semaphore.Weighted) *frames {
	return &frames{conn: c, r: bufio.NewReaderSize(c, readBuf), budget: budget}
}

// next reads a frame. It waits for the first byte until the connection's deadline, then for each piece at most frameTime. Memory grows
// with the bytes that arrive, not with the announced length.
func (f *frames) next() (kind, []byte, error) {
	f.release()
	head, err := f.r.Peek(1)
	if err != nil {
		return 0, nil, err
	}
	k := kind(head[0])
	if f.r.Buffered() < frameHead {
		_ = f.conn.SetReadDeadline(time.Now().Add(frameTime))
	}
	head, err = f.r.Peek(frameHead)
	if err != nil {
		return 0, nil, noEOF(err)
	}
	n := int(binary.BigEndian.Uint32(head[1:]))
	_, _ = f.r.Discard(frameHead)
	if n > maxFrame {
		return 0, nil, fmt.Errorf("%w: frame of %d bytes, at most %d allowed", ErrTooLarge, n, maxFrame)
	}
	if err := f.acquire(n); err != nil {
		return 0, nil, err
	}
	f.buf = f.buf[:0]
	for len(f.buf) < n {
		piece := min(n-len(f.buf), framePiece)
		if n > f.r.Buffered() {
			_ = f.conn.SetReadDeadline(time.Now().Add(frameTime))
		}
		at := len(f.buf)
		f.buf = slices.Grow(f.buf, piece)[:at+piece]
		if _, err := io.ReadFull(f.r, f.buf[at:]); err != nil {
			return 0, nil, noEOF(err)
		}
	}
	return k, f.buf, nil
}

// acquire takes the frame's share of the memory for large frames.
func (f *frames) acquire(n int) error {
	if f.budget == nil || n <= smallFrame {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), frameTime)
	defer cancel()
	if err := f.budget.Acquire(ctx, int64(n)); err != nil {
		return fmt.Errorf("peer: no memory for a frame of %d bytes: %w", n, err)
	}
	f.held = int64(n)
	return nil
}

// release returns the last frame's share of the budget, and its memory if that is large.
func (f *frames) release() {
	if cap(f.buf) > keptFrame {
		f.buf = nil
	}
	if f.held > 0 {
		f.budget.Release(f.held)
		f.held = 0
	}
}

// noEOF returns io.ErrUnexpectedEOF for io.EOF: inside a frame the stream must not end.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
