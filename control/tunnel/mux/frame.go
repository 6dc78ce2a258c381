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

// Window is the initial window: the bytes of a stream that may be sent and unread in one direction.
const Window = 256 << 10

const (
	maxWindow = 4 << 20 // of a stream whose reader keeps up: 80 MB/s over a path of 50 ms
	// maxLent bounds the total growth of the windows of all streams of a connection, in bytes.
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
	kindHello   kind = iota + 1 // from the opener, first frame: the connection is accepted
	kindBye                     // from the opener: the connection is refused or ended, with a reason
	kindOpen                    // from the opener: open a stream to a target
	kindOpened                  // from the node: the stream is connected
	kindRefused                 // from the node: not connected, with a reason
	kindData
	kindCredit // four bytes: how many more bytes may be sent
	kindEnd    // end of data in this direction
	kindReset  // the sender neither writes nor reads any more; with a reason, empty after Close
	kindPing   // opener
	kindPong   // node
)

// ErrProtocol means that the peer violated the protocol.
var ErrProtocol = errors.New("mux: protocol violation")

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

type frame struct {
	kind    kind
	stream  uint32
	payload []byte // valid until the next frame is read
}

// appendFrame appends an encoded frame.
func appendFrame(b []byte, k kind, stream uint32, payload []byte) []byte {
	b = append(b, byte(k), byte(len(payload)>>8), byte(len(payload)))
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, payload...)
}

// readFrame reads one frame. It calls buffer for memory only after the header has arrived.
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

// check validates a header: the length for its kind, and whether it has a stream's number.
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

// clip truncates a text so that it fits into a frame.
func clip(text string) []byte { return []byte(text[:min(len(text), maxText)]) }
