package servers

import (
	"errors"
	"fmt"
	"io"
)

// errNotTLS: the first bytes are no ClientHello.
var errNotTLS = errors.New("not a TLS client")

const (
	recordHeader    = 5
	recordHandshake = 22
	maxRecord       = 1<<14 + 256
	messageHeader   = 4
	messageHello    = 1
	maxHello        = 1 << 16 // a ClientHello has no business being longer
	maxHelloRecords = 16
)

// readHello reads whole TLS records until they hold a whole ClientHello (RFC 8446, 4 and 5.1) and returns them as they
// came. It reads not one byte more and never more than maxHello.
func readHello(r io.Reader) ([]byte, error) {
	var raw []byte
	message, need := 0, -1 // bytes of the handshake message so far, and all of it
	for range maxHelloRecords {
		at := len(raw)
		raw = append(raw, make([]byte, recordHeader)...)
		if _, err := io.ReadFull(r, raw[at:]); err != nil {
			return nil, err
		}
		n := int(raw[at+3])<<8 | int(raw[at+4])
		if raw[at] != recordHandshake || raw[at+1] != 3 || n == 0 || n > maxRecord || len(raw)+n > maxHello {
			return nil, fmt.Errorf("%w: record of type %d and length %d", errNotTLS, raw[at], n)
		}
		raw = append(raw, make([]byte, n)...)
		fragment := raw[at+recordHeader:]
		if _, err := io.ReadFull(r, fragment); err != nil {
			return nil, err
		}
		if need < 0 {
			if n < messageHeader || fragment[0] != messageHello {
				return nil, fmt.Errorf("%w: handshake message of type %d", errNotTLS, fragment[0])
			}
			need = messageHeader + (int(fragment[1])<<16 | int(fragment[2])<<8 | int(fragment[3]))
		}
		if message += n; message >= need {
			return raw, nil
		}
	}
	return nil, fmt.Errorf("%w: ClientHello in too many records", errNotTLS)
}
