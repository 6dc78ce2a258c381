package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// ALPN is the protocol's name and version in the TLS handshake.
const ALPN = "balsa-node/1"

// Window is how many bytes of a stream may be under way in one direction at first.
const Window = 256 << 10

const (
	maxWindow = 4 << 20 // of a stream whose reader keeps up: 80 MB/s over a path of 50 ms
	// maxLent is how many bytes the windows of all streams of a connection may be larger than at first, together.
	maxLent = 16 << 20
	// brisk is the time in which half a window must be read for the window to grow.
	brisk = 250 * time.Millisecond
)

const (
	headerSize = 7
	maxPayload = 32<<10 - headerSize // with the header, two full TLS records; a record of TLS inside fits
	maxTarget  = 128
	maxText    = 512
)

type kind byte

const (
	kindHello   kind = iota + 1 // opener, first: go on
	kindBye                     // opener: this connection is not wanted, and why
	kindOpen                    // opener: a target
	kindOpened                  // node
	kindRefused                 // node: why
	kindData
	kindCredit // four bytes: how many more may come
	kindEnd    // nothing more comes in this direction
	kindReset  // nothing more comes and nothing more is read; why, or nothing when it was closed
	kindPing   // opener
	kindPong   // node
)

// ErrProtocol: the other end said what nobody says who speaks this protocol.
var ErrProtocol = errors.New("mux: protocol violation")

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

type frame struct {
	kind    kind
	stream  uint32
	payload []byte // valid until the next frame is read
}

// appendFrame encodes one.
func appendFrame(b []byte, k kind, stream uint32, payload []byte) []byte {
	b = append(b, byte(k), byte(len(payload)>>8), byte(len(payload)))
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, payload...)
}

// readFrame reads one; the memory of a payload is asked for when its header has come.
func readFrame(r io.Reader, h []byte, buffer func() []byte) (frame, error) {
	if _, err := io.ReadFull(r, h[:headerSize]); err != nil {
		return frame{}, err
	}
	f := frame{kind: kind(h[0]), stream: binary.BigEndian.Uint32(h[3:])}
	n := int(binary.BigEndian.Uint16(h[1:]))
	if err := f.check(n); err != nil {
		return f, err
	}
	if n == 0 {
		return f, nil
	}
	f.payload = buffer()[:n]
	_, err := io.ReadFull(r, f.payload)
	return f, err
}

// check judges a header: kinds have their lengths, and concern a stream or the connection.
func (f frame) check(n int) error {
	least, most, ofStream := 0, 0, true
	switch f.kind {
	case kindHello, kindPing, kindPong:
		ofStream = false
	case kindBye:
		most, ofStream = maxText, false
	case kindOpen:
		least, most = 1, maxTarget
	case kindRefused, kindReset:
		most = maxText
	case kindData:
		least, most = 1, maxPayload
	case kindCredit:
		least, most = 4, 4
	case kindOpened, kindEnd:
	default:
		return violation("frame of kind %d", f.kind)
	}
	if n < least || n > most {
		return violation("frame of kind %d with %d bytes", f.kind, n)
	}
	if ofStream != (f.stream != 0) {
		return violation("frame of kind %d for stream %d", f.kind, f.stream)
	}
	return nil
}

// clip makes a text fit into a frame.
func clip(text string) []byte { return []byte(text[:min(len(text), maxText)]) }
