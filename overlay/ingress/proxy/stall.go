package proxy

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// stall ends a connection of HTTP/1 whose client stands still: that does not read what is written to it, or does not send
// what it has announced. It asks nothing of streams that are silent. HTTP/2 has bounds of its own.
//
// It also sees to it that a connection ends with an answer that was begun before the request had ended: net/http does so
// by itself only while it does not read and write at once, and what is left of a body must never be read as a request.
type stall struct {
	http.ResponseWriter
	control *http.ResponseController
	after   time.Duration
	set     time.Time  // when the deadline was last moved
	body    *stallBody // nil without a body
	duplex  bool
}

func newStall(w http.ResponseWriter, r *http.Request, after time.Duration) *stall {
	s := &stall{ResponseWriter: w, control: http.NewResponseController(w), after: after}
	s.move()
	if r.ContentLength != 0 && r.Body != http.NoBody {
		s.body = &stallBody{ReadCloser: r.Body, stall: s, announced: r.ContentLength > 0}
		r.Body = s.body
		s.bound() // of what net/http throws away when nobody reads it
	}
	return s
}

// stream begins reading and writing at once. A body of unknown length may be silent for as long as it likes.
func (s *stall) stream() {
	s.duplex = s.control.EnableFullDuplex() == nil
	if s.body != nil && !s.body.announced {
		_ = s.control.SetReadDeadline(time.Time{})
	}
}

// finish is for when the handler is done: what is left of the body must come soon.
func (s *stall) finish() {
	if s.body != nil && !s.body.ended.Load() {
		s.bound()
	}
}

// bound moves the deadline for reading. Where there is no such thing, there is no bound.
func (s *stall) bound() { _ = s.control.SetReadDeadline(time.Now().Add(s.after)) }

// move puts off the deadline for writing, now and then: what is written meanwhile has the rest of the time.
func (s *stall) move() {
	if now := time.Now(); now.Sub(s.set) > s.after/8 {
		s.set = now
		_ = s.control.SetWriteDeadline(now.Add(s.after))
	}
}

// WriteHeader implements http.ResponseWriter.
func (s *stall) WriteHeader(status int) {
	if status >= 200 && s.duplex && s.body != nil && !s.body.ended.Load() {
		s.Header().Set("Connection", "close")
	}
	s.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (s *stall) Write(p []byte) (int, error) {
	s.move()
	return s.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (s *stall) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// stallBody bounds the pauses within a body of announced length, and knows whether a body has ended as it should.
type stallBody struct {
	io.ReadCloser
	stall     *stall
	announced bool
	ended     atomic.Bool
}

func (b *stallBody) Read(p []byte) (int, error) {
	if b.announced {
		b.stall.bound()
	}
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.ended.Store(true)
		_ = b.stall.control.SetReadDeadline(time.Time{}) // the server goes on reading, to see the client go
	}
	return n, err
}
