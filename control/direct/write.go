package direct

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
)

const (
	// compressFrom is the size from which an answer is compressed, as upstream has it.
	compressFrom = 128 << 10
	// piece is how much is written at once.
	piece = 64 << 10
)

var pieces = sync.Pool{New: func() any { b := make([]byte, 0, piece+16<<10); return &b }}

var compressors = sync.Pool{New: func() any {
	z, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	return z
}}

// counter counts what is written.
type counter struct {
	io.Writer
	n int
}

// Write implements io.Writer.
func (c *counter) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.n += n
	return n, err
}

// length is about how long the answer is.
func (a *answer) length() int {
	n := max(a.size, len(a.head)+len(a.tail))
	for i := range a.texts {
		n += len(a.texts[i]) + 1
	}
	for i := range a.stored {
		n += a.stored[i].Len() + 1
	}
	return n
}

// write sends the answer and returns how many bytes went out. A client that went
// away notices no error.
func (a *answer) write(w http.ResponseWriter, r *http.Request) int {
	w.Header().Set("Content-Type", a.contentType())
	out := &counter{Writer: w}
	if a.length() < compressFrom || !compressible(r) {
		w.WriteHeader(http.StatusOK)
		_ = a.send(out)
		return out.n
	}
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Add("Vary", "Accept-Encoding")
	w.WriteHeader(http.StatusOK)
	z := compressors.Get().(*gzip.Writer)
	defer compressors.Put(z)
	z.Reset(out)
	if a.send(z) == nil {
		_ = z.Close()
	}
	return out.n
}

// compressible: the client takes gzip, and is far enough away for that to pay.
func compressible(r *http.Request) bool {
	if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		return false
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false // in the process
	}
	ip := net.ParseIP(host)
	return ip != nil && !ip.IsLoopback()
}

// send writes the answer in pieces.
func (a *answer) send(w io.Writer) error {
	kept := pieces.Get().(*[]byte)
	b := append((*kept)[:0], a.head...)
	defer func() {
		if cap(b) <= 4*piece {
			*kept = b[:0]
		}
		pieces.Put(kept)
	}()
	flush := func(limit int) error {
		if len(b) < limit {
			return nil
		}
		_, err := w.Write(b)
		b = b[:0]
		return err
	}
	for i := range a.items {
		if !a.single {
			b = appendHead(b, listItems, a.items[i].size())
		}
		b = a.items[i].append(b)
		if err := flush(piece); err != nil {
			return err
		}
	}
	for i, text := range a.texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, text...)
		if err := flush(piece); err != nil {
			return err
		}
	}
	for i, text := range a.stored {
		if i > 0 {
			b = append(b, ',')
		}
		b = text.Append(b)
		if err := flush(piece); err != nil {
			return err
		}
	}
	b = append(b, a.tail...)
	return flush(1)
}
