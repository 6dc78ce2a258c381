package proxy

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/overlay/ingress/plan"
)

const (
	mirrorTime  = 30 * time.Second
	mirrorAhead = 16 // how many chunks a copy may be behind the request; a slower copy is aborted
)

var errMirrorSlow = errors.New("proxy: the copy's backend is slower than the request")

// mirror sends copies of a request to the rule's mirrors and discards their responses. Copies never delay the request:
// above a bound no copy is made, and a copy whose backend reads the body too slowly is aborted.
func (p *Proxy) mirror(r *http.Request, x *exchange) {
	for _, m := range x.target.Mirrors {
		if m.Denominator <= 0 || rand.Int32N(m.Denominator) >= m.Numerator || r.Header.Get("Upgrade") != "" {
			continue
		}
		select {
		case p.mirroring <- struct{}{}:
		default:
			continue
		}
		out := copyFor(r, m.Backend)
		if r.Body != nil && r.Body != http.NoBody {
			tee := &tee{ReadCloser: r.Body, chunks: make(chan []byte, mirrorAhead)}
			r.Body, out.Body = tee, &chunkReader{from: tee}
		}
		p.running.Go(fault.Contained("ingress/proxy", func() {
			defer func() { <-p.mirroring }()
			ctx, cancel := context.WithTimeout(p.ctx, mirrorTime)
			defer cancel()
			if resp, err := p.carrier.carry(out.WithContext(ctx), m.Backend, 0); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}))
	}
}

func copyFor(r *http.Request, b plan.Backend) *http.Request {
	out := r.Clone(context.Background())
	out.RequestURI, out.URL.Scheme, out.URL.Host = "", "http", "backend"
	if b.Protocol == plan.HTTPS {
		out.URL.Scheme = "https"
	}
	out.Host = r.Host
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect"} {
		for _, listed := range strings.Split(out.Header.Get("Connection"), ",") {
			out.Header.Del(strings.TrimSpace(listed))
		}
		out.Header.Del(name)
	}
	out.Trailer = nil
	if r.ContentLength == 0 {
		out.Body = nil
	}
	return out
}

// tee is a request's body that also sends what is read into a channel. The copy ends with the body, or when it is too far
// behind.
type tee struct {
	io.ReadCloser
	chunks chan []byte

	mu     sync.Mutex // Close may come while Read waits
	ended  bool
	failed error // why the copy ended; written before chunks is closed
}

func (t *tee) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if n > 0 && !t.offer(p[:n]) {
		t.end(errMirrorSlow)
	}
	if err != nil {
		t.end(err)
	}
	return n, err
}

// Close implements io.Closer.
func (t *tee) Close() error {
	t.end(io.ErrUnexpectedEOF)
	return t.ReadCloser.Close()
}

// offer adds a chunk to the copy; false if the copy is too far behind.
func (t *tee) offer(p []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return true
	}
	select {
	case t.chunks <- append([]byte(nil), p...):
		return true
	default:
		return false
	}
}

func (t *tee) end(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.ended, t.failed = true, err
		close(t.chunks)
	}
}

// chunkReader is the body of the copied request.
type chunkReader struct {
	from *tee
	rest []byte
}

func (c *chunkReader) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		chunk, ok := <-c.from.chunks
		if !ok {
			return 0, c.from.failed
		}
		c.rest = chunk
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// Close implements io.Closer.
func (c *chunkReader) Close() error { return nil }
