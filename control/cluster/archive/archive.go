package archive

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"time"
)

const (
	magic, endMagic = "BALSAARC", "BALSAEND"
	formVersion     = 2 // 1 had the store's stream as it is
	maxHeader       = 64 << 10
	maxSealed       = 1 << 20
	maxFrame        = 256 << 10
)

// Errors of reading an archive.
var (
	// ErrDamaged means that a length, a checksum or the end is wrong. Data read before the error must not be used.
	ErrDamaged = errors.New("the snapshot file is damaged")
	// ErrNewer means that a newer version wrote the archive.
	ErrNewer = errors.New("the snapshot file was written by a newer version of balsa: use that one")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header says where an archive comes from.
type Header struct {
	ClusterID  string            `json:"clusterID"`
	Generation int64             `json:"generation"`
	CAPin      string            `json:"caPin"`
	Created    time.Time         `json:"created"`
	ServerID   string            `json:"serverID"`
	Server     string            `json:"server"`
	Version    string            `json:"version"`
	Settings   map[string]string `json:"settings,omitempty"`
}

// Trailer says what an archive holds.
type Trailer struct {
	Revision int64 `json:"revision"`
	Keys     int64 `json:"keys"`
	Leases   int64 `json:"leases"`
	Bytes    int64 `json:"bytes"` // of the store's stream, as it is in the archive
}

// Write makes an archive, encrypted with key. body writes the store's stream and returns a summary of it; keys is the
// cluster's key bundle. If Write fails, the output is useless.
func Write(w io.Writer, h Header, key Key, keys []byte, body func(io.Writer) (Trailer, error)) error {
	head, err := json.Marshal(h)
	if err != nil {
		return err
	}
	sealed, err := key.Seal(h.ClusterID, keys)
	if err != nil {
		return err
	}
	if len(head) > maxHeader || len(sealed) > maxSealed {
		return fmt.Errorf("archive: header of %d and keys of %d bytes are too large", len(head), len(sealed))
	}
	sum := sha256.New()
	out := bufio.NewWriterSize(io.MultiWriter(w, sum), maxFrame)
	start := binary.BigEndian.AppendUint16([]byte(magic), formVersion)
	if _, err := out.Write(start); err != nil {
		return err
	}
	for _, part := range [][]byte{head, sealed} {
		if err := writeFrame(out, part); err != nil {
			return err
		}
	}
	frames := &frameWriter{out: out}
	stream, err := key.encrypt(h.ClusterID, frames)
	if err != nil {
		return err
	}
	trailer, err := body(stream)
	if err == nil {
		err = stream.Close()
	}
	if err == nil {
		err = frames.flush()
	}
	if err != nil {
		return err
	}
	trailer.Bytes = frames.total
	tail, err := json.Marshal(trailer)
	if err != nil {
		return err
	}
	end := binary.BigEndian.AppendUint32(nil, 0)
	end = binary.BigEndian.AppendUint32(end, uint32(len(tail)))
	end = append(end, tail...)
	end = binary.BigEndian.AppendUint32(end, uint32(len(tail)))
	if _, err := out.Write(end); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err = w.Write(append(sum.Sum(nil), endMagic...))
	return err
}

func writeFrame(w io.Writer, data []byte) error {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, len(data)+8), uint32(len(data)))
	b = append(b, data...)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	_, err := w.Write(b)
	return err
}

// frameWriter cuts a stream into frames.
type frameWriter struct {
	out   io.Writer
	buf   []byte
	total int64
}

// Write implements io.Writer.
func (f *frameWriter) Write(p []byte) (int, error) {
	n := len(p)
	f.total += int64(n)
	for len(p) > 0 {
		take := min(len(p), maxFrame-len(f.buf))
		f.buf, p = append(f.buf, p[:take]...), p[take:]
		if len(f.buf) == maxFrame {
			if err := f.flush(); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

func (f *frameWriter) flush() error {
	if len(f.buf) == 0 {
		return nil
	}
	err := writeFrame(f.out, f.buf)
	f.buf = f.buf[:0]
	return err
}

// Reader reads the store's stream out of an archive, as it is there: Open is for what it says.
type Reader struct {
	form    uint16
	in      *bufio.Reader
	sum     hash.Hash
	header  Header
	sealed  []byte
	trailer Trailer
	frame   []byte // not yet read
	buf     []byte
	total   int64
	err     error
}

// NewReader reads and checks what comes before the stream.
func NewReader(r io.Reader) (*Reader, error) {
	a := &Reader{in: bufio.NewReaderSize(r, 64<<10), sum: sha256.New()}
	start, err := a.take(len(magic) + 2)
	if err != nil {
		return nil, err
	}
	if string(start[:len(magic)]) != magic {
		return nil, damaged("it is no snapshot of balsa")
	}
	if a.form = binary.BigEndian.Uint16(start[len(magic):]); a.form == 0 || a.form > formVersion {
		return nil, fmt.Errorf("archive: form %d: %w", a.form, ErrNewer)
	}
	head, err := a.readFrame(maxHeader)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(head, &a.header); err != nil {
		return nil, damaged("its header cannot be read")
	}
	sealed, err := a.readFrame(maxSealed)
	a.sealed = bytes.Clone(sealed)
	return a, err
}

// Header says where the archive comes from.
func (a *Reader) Header() Header { return a.header }

// Encrypted reports whether the store's stream needs the recovery key. That of older versions is readable by anybody.
func (a *Reader) Encrypted() bool { return a.form > 1 }

// Open returns the store's stream as it was. Reading it ends with ErrWrongKey when key is another cluster's.
func (a *Reader) Open(key Key) io.Reader {
	if !a.Encrypted() {
		return a
	}
	return key.decrypt(a.header.ClusterID, a)
}

// Sealed are the cluster's keys, for [Key.Open].
func (a *Reader) Sealed() []byte { return a.sealed }

// Trailer says what the archive holds, once Read has said io.EOF.
func (a *Reader) Trailer() Trailer { return a.trailer }

// Read implements io.Reader.
func (a *Reader) Read(p []byte) (int, error) {
	for len(a.frame) == 0 && a.err == nil {
		a.frame, a.err = a.readFrame(maxFrame)
		if a.err == nil && len(a.frame) == 0 {
			a.err = damaged("an empty frame")
		}
		if errors.Is(a.err, errEnd) {
			a.err = a.readEnd()
		}
	}
	if len(a.frame) == 0 {
		return 0, a.err
	}
	n := copy(p, a.frame)
	a.frame = a.frame[n:]
	a.total += int64(n)
	return n, nil
}

var errEnd = errors.New("end of frames")

func damaged(format string, args ...any) error {
	return fmt.Errorf("archive: "+format+": %w", append(args, ErrDamaged)...)
}

// take reads n bytes into memory that the next take uses again. n is bounded by every caller.
func (a *Reader) take(n int) ([]byte, error) {
	if cap(a.buf) < n {
		a.buf = make([]byte, n)
	}
	b := a.buf[:n]
	if _, err := io.ReadFull(a.in, b); err != nil {
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil, damaged("it ends too early")
		}
		return nil, err
	}
	a.sum.Write(b)
	return b, nil
}

// readFrame answers errEnd for the mark that ends the stream; only the keys' frame may be empty, which has a checksum.
func (a *Reader) readFrame(limit int) ([]byte, error) {
	head, err := a.take(4)
	if err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head))
	if n == 0 && limit == maxFrame {
		return nil, errEnd
	}
	if n > limit {
		return nil, damaged("a length of %d", n)
	}
	crc := crc32.Checksum(head, castagnoli)
	b, err := a.take(n + 4)
	if err != nil {
		return nil, err
	}
	if crc32.Update(crc, castagnoli, b[:n]) != binary.BigEndian.Uint32(b[n:]) {
		return nil, damaged("a checksum is wrong")
	}
	return b[:n], nil
}

func (a *Reader) readEnd() error {
	head, err := a.take(4)
	if err != nil {
		return err
	}
	n := int(binary.BigEndian.Uint32(head))
	if n > maxHeader {
		return damaged("a length of %d", n)
	}
	b, err := a.take(n + 4)
	if err != nil {
		return err
	}
	if int(binary.BigEndian.Uint32(b[n:])) != n || json.Unmarshal(b[:n], &a.trailer) != nil {
		return damaged("its trailer cannot be read")
	}
	want := a.sum.Sum(nil)
	end, err := a.take(sha256.Size + len(endMagic))
	if err != nil {
		return err
	}
	if !bytes.Equal(end[:sha256.Size], want) || string(end[sha256.Size:]) != endMagic {
		return damaged("the sum over all of it is wrong")
	}
	if _, err := a.in.ReadByte(); err != io.EOF {
		return damaged("something follows its end")
	}
	if a.trailer.Bytes != a.total {
		return damaged("it should hold %d bytes and holds %d", a.trailer.Bytes, a.total)
	}
	return io.EOF
}

// Verify reads a whole archive. check reads the store's stream and judges it; nil takes any. Without a key the stream of an
// encrypted archive is not judged: only the checksums over it are.
func Verify(r io.Reader, key *Key, check func(io.Reader) error) (Header, Trailer, error) {
	a, err := NewReader(r)
	if err != nil {
		return Header{}, Trailer{}, err
	}
	if check != nil && (key != nil || !a.Encrypted()) {
		stream := io.Reader(a)
		if a.Encrypted() {
			stream = a.Open(*key)
		}
		if err := check(stream); err != nil {
			return a.header, Trailer{}, err
		}
		if _, err := io.Copy(io.Discard, stream); err != nil {
			return a.header, Trailer{}, err
		}
	}
	if _, err := io.Copy(io.Discard, a); err != nil {
		return a.header, Trailer{}, err
	}
	return a.header, a.trailer, nil
}

// Peek reads header and trailer of a file and checks neither what lies between nor the sum: for listings.
func Peek(r io.ReadSeeker) (Header, Trailer, error) {
	a, err := NewReader(r)
	if err != nil {
		return Header{}, Trailer{}, err
	}
	const last = 4 + sha256.Size + len(endMagic)
	end := make([]byte, last)
	if _, err := r.Seek(-int64(last), io.SeekEnd); err != nil {
		return a.header, Trailer{}, damaged("it ends too early")
	}
	if _, err := io.ReadFull(r, end); err != nil {
		return a.header, Trailer{}, err
	}
	n := int64(binary.BigEndian.Uint32(end))
	if n > maxHeader || string(end[last-len(endMagic):]) != endMagic {
		return a.header, Trailer{}, damaged("it has no end")
	}
	if _, err := r.Seek(-int64(last)-n, io.SeekEnd); err != nil {
		return a.header, Trailer{}, damaged("it ends too early")
	}
	tail := make([]byte, n)
	if _, err := io.ReadFull(r, tail); err != nil {
		return a.header, Trailer{}, err
	}
	var t Trailer
	if json.Unmarshal(tail, &t) != nil {
		return a.header, Trailer{}, damaged("its trailer cannot be read")
	}
	return a.header, t, nil
}
