package archive

import (
	"bufio"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
)

// The store's stream is encrypted under a key of its own, derived from the recovery key, a salt and the cluster's ID: the
// salt, then chunks of AES-256-GCM, each of streamChunk bytes but the last. A chunk's nonce is its number and whether it is
// the last one, so that none can be moved, left out or put at the end (STREAM, Hoang et al., 2015).
const (
	streamChunk = 64 << 10
	streamSalt  = 32
	gcmNonce    = 12
	gcmTag      = 16
)

// sealer encrypts one stream, or decrypts one.
type sealer struct {
	aead  cipher.AEAD
	nonce [gcmNonce]byte
	count uint64
}

func (k Key) sealer(clusterID string, salt []byte) (*sealer, error) {
	key, err := hkdf.Key(sha256.New, k.raw[:], salt, "balsa archive stream "+clusterID, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	return &sealer{aead: aead}, err
}

// next is the nonce of the next chunk; the stream's key is used for no other stream.
func (s *sealer) next(last bool) []byte {
	binary.BigEndian.PutUint64(s.nonce[3:], s.count)
	s.count++
	s.nonce[gcmNonce-1] = 0
	if last {
		s.nonce[gcmNonce-1] = 1
	}
	return s.nonce[:]
}

// encrypter is an io.Writer; Close writes the last chunk.
type encrypter struct {
	*sealer
	out io.Writer
	buf []byte
	box []byte
}

func (k Key) encrypt(clusterID string, w io.Writer) (*encrypter, error) {
	salt := make([]byte, streamSalt)
	_, _ = rand.Read(salt) // never fails: crypto/rand aborts the program instead
	s, err := k.sealer(clusterID, salt)
	if err != nil {
		return nil, err
	}
	_, err = w.Write(salt)
	return &encrypter{sealer: s, out: w, buf: make([]byte, 0, streamChunk), box: make([]byte, 0, streamChunk+gcmTag)}, err
}

// Write implements io.Writer.
func (e *encrypter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if len(e.buf) == streamChunk { // more follows, so this one is not the last
			if err := e.flush(false); err != nil {
				return 0, err
			}
		}
		take := min(len(p), streamChunk-len(e.buf))
		e.buf, p = append(e.buf, p[:take]...), p[take:]
	}
	return n, nil
}

// Close implements io.Closer; it leaves the writer below open.
func (e *encrypter) Close() error { return e.flush(true) }

func (e *encrypter) flush(last bool) error {
	e.box = e.aead.Seal(e.box[:0], e.next(last), e.buf, nil)
	e.buf = e.buf[:0]
	_, err := e.out.Write(e.box)
	return err
}

// decrypter is an io.Reader of what an encrypter was given.
type decrypter struct {
	key       Key
	clusterID string
	in        *bufio.Reader
	*sealer   // nil before the salt was read
	box       []byte
	plain     []byte // not yet read
	err       error
}

func (k Key) decrypt(clusterID string, r io.Reader) *decrypter {
	return &decrypter{key: k, clusterID: clusterID, in: bufio.NewReaderSize(r, streamChunk+gcmTag), box: make([]byte, streamChunk+gcmTag)}
}

// Read implements io.Reader. Its error is ErrWrongKey when a chunk was not made with this key for this cluster.
func (d *decrypter) Read(p []byte) (int, error) {
	for len(d.plain) == 0 && d.err == nil {
		d.err = d.chunk()
	}
	if len(d.plain) == 0 {
		return 0, d.err
	}
	n := copy(p, d.plain)
	d.plain = d.plain[n:]
	return n, nil
}

// chunk opens the next chunk, and says io.EOF with the last.
func (d *decrypter) chunk() error {
	if d.sealer == nil {
		salt := make([]byte, streamSalt)
		if _, err := io.ReadFull(d.in, salt); err != nil {
			return cut(err)
		}
		s, err := d.key.sealer(d.clusterID, salt)
		if err != nil {
			return err
		}
		d.sealer = s
	}
	n, err := io.ReadFull(d.in, d.box)
	last := errors.Is(err, io.ErrUnexpectedEOF)
	if err == nil {
		_, err = d.in.Peek(1)
		last = errors.Is(err, io.EOF)
	}
	if err != nil && !last {
		return cut(err)
	}
	if d.plain, err = d.aead.Open(d.box[:0], d.next(last), d.box[:n], nil); err != nil {
		return ErrWrongKey
	}
	if last {
		return io.EOF
	}
	return nil
}

// cut says of a stream that ends between two chunks that it is not whole.
func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return damaged("its stream ends too early")
	}
	return err
}
