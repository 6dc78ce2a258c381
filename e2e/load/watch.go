package load

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// Events separates the events of a watch, however their bytes are cut: in JSON by newlines, in protobuf by the lengths
// before them. If Each is nil, it only counts events and copies nothing.
type Events struct {
	Encoding *Encoding
	Each     func(event []byte) error
	Count    int

	skip    int    // bytes of a protobuf event still to come
	partial []byte // start of a length, or of an event for Each
}

// Write takes the next bytes.
func (e *Events) Write(b []byte) error {
	if e.Encoding == Protobuf {
		return e.framed(b)
	}
	for e.Each != nil {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			e.partial = append(e.partial, b...)
			return nil
		}
		e.Count++
		if err := e.Each(append(e.partial, b[:i]...)); err != nil {
			return err
		}
		e.partial, b = e.partial[:0], b[i+1:]
	}
	e.Count += bytes.Count(b, []byte{'\n'})
	return nil
}

// maxEvent bounds the length of an event.
const maxEvent = 64 << 20

func (e *Events) framed(b []byte) error {
	for len(b) > 0 {
		if e.skip == 0 {
			n := min(4-len(e.partial), len(b))
			e.partial, b = append(e.partial, b[:n]...), b[n:]
			if len(e.partial) < 4 {
				return nil
			}
			e.skip = int(binary.BigEndian.Uint32(e.partial))
			e.partial = e.partial[:0]
			if e.skip == 0 || e.skip > maxEvent {
				return errors.New("a watch sent an invalid length of an event")
			}
			continue
		}
		n := min(e.skip, len(b))
		if e.Each != nil {
			e.partial = append(e.partial, b[:n]...)
		}
		b, e.skip = b[n:], e.skip-n
		if e.skip > 0 {
			return nil
		}
		e.Count++
		if e.Each != nil {
			if err := e.Each(e.partial); err != nil {
				return err
			}
			e.partial = e.partial[:0]
		}
	}
	return nil
}
