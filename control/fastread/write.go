package fastread

import (
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
)

const (
	// compressBeyond is the size in bytes above which an answer is compressed; upstream's figure.
	compressBeyond = 128 << 10
	// writeSize is how many bytes are written at once.
	writeSize = 64 << 10
)

var pieces = sync.Pool{New: func() any { b := make([]byte, 0, writeSize+16<<10); return &b }}

var compressors = sync.Pool{New: func() any {
	z, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	return z
}}

// counter counts the bytes written.
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

// length returns the length of the answer in bytes.
func (a *answer) length() int {
	n := len(a.head) + len(a.tail)
	for i := range a.items {
		size := a.items[i].size()
		if n += size; !a.oneObject {
			n += 1 + uvarintSize(size)
		}
	}
	for i := range a.texts {
		n += len(a.texts[i])
	}
	for i := range a.stored {
		n += a.stored[i].Len()
	}
	return n + max(0, len(a.texts)-1, len(a.stored)-1) // commas
}

// write sends the answer and returns how many bytes were sent. A client that has left gets no error.
func (a *answer) write(w http.ResponseWriter, r *http.Request) int {
	w.Header().Set("Content-Type", a.contentType())
	out := &counter{Writer: w}
	if !takesGzip(r) || a.length() <= compressBeyond {
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

// takesGzip reports whether the client accepts compressed answers; it reads the header as upstream does.
func takesGzip(r *http.Request) bool {
	for token := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(token) == "gzip" {
			return true
		}
	}
	return false
}

// send writes the answer in pieces.
func (a *answer) send(w io.Writer) error {
	kept := pieces.Get().(*[]byte)
	b := append((*kept)[:0], a.head...)
	defer func() {
		if cap(b) <= 4*writeSize {
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
		if !a.oneObject {
			b = appendHead(b, listItems, a.items[i].size())
		}
		b = a.items[i].append(b)
		if err := flush(writeSize); err != nil {
			return err
		}
	}
	for i, text := range a.texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, text...)
		if err := flush(writeSize); err != nil {
			return err
		}
	}
	for i, text := range a.stored {
		if i > 0 {
			b = append(b, ',')
		}
		b = text.Append(b)
		if err := flush(writeSize); err != nil {
			return err
		}
	}
	b = append(b, a.tail...)
	return flush(1)
}
