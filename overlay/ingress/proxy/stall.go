package proxy

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// stall ends an HTTP/1 connection whose client stalls: it does not read the response, or does not send the rest of a body
// of announced length. Silent streams are not affected. HTTP/2 has bounds of its own.
//
// It also closes the connection after a response that began before the request's body had ended. In full-duplex mode
// net/http does not do so, and the rest of a body must never be parsed as the next request.
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
		s.bound() // bounds how long net/http reads and discards a body that the handler does not read
	}
	return s
}

// stream switches to full-duplex mode. A body of unknown length may pause without a bound.
func (s *stall) stream() {
	s.duplex = s.control.EnableFullDuplex() == nil
	if s.body != nil && !s.body.announced {
		_ = s.control.SetReadDeadline(time.Time{})
	}
}

// finish is called after the handler. It bounds the time for the rest of the body.
func (s *stall) finish() {
	if s.body != nil && !s.body.ended.Load() {
		s.bound()
	}
}

// bound sets the read deadline. A connection that supports no deadline is not bounded.
func (s *stall) bound() { _ = s.control.SetReadDeadline(time.Now().Add(s.after)) }

// move sets the write deadline, but only after an eighth of the time has passed, because setting it costs something. Writes
// in between have at least seven eighths of the time.
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

// Unwrap returns the inner writer, for http.ResponseController.
func (s *stall) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// stallBody bounds the pauses within a body of announced length, and records whether the body was read to its end.
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
		_ = b.stall.control.SetReadDeadline(time.Time{}) // the server goes on reading in the background to notice that the client disconnects
	}
	return n, err
}
