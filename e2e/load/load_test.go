package load

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestStampIsFound: StampOf finds the stamp of a written object in every encoding, also if the object was made from a
// template.
func TestStampIsFound(t *testing.T) {
	now := time.Now().UnixNano()
	stamp := strconv.FormatInt(now, 10)
	for _, e := range []*Encoding{JSON, Protobuf} {
		got, err := StampOf(e.ConfigMap("name", stamp, nil))
		if err != nil || got != now {
			t.Errorf("%s: stamp %d, %v; want %d", e.Name, got, err, now)
		}
		mark := strings.Repeat("9", StampDigits)
		template, err := NewTemplate(e.ConfigMap("name-00", mark, nil), "name-00", mark)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(template.Fill("name-17", stamp), e.ConfigMap("name-17", stamp, nil)) {
			t.Errorf("%s: a filled template is another object", e.Name)
		}
	}
	if _, err := StampOf([]byte("nothing")); err == nil {
		t.Error("a stamp was found where there is none")
	}
}

// TestEventsInPieces: events are separated wherever their bytes were cut.
func TestEventsInPieces(t *testing.T) {
	events := []string{"first", "the second one", strings.Repeat("third", 500)}
	var lines, frames []byte
	for _, e := range events {
		lines = append(append(lines, e...), '\n')
		frames = append(binary.BigEndian.AppendUint32(frames, uint32(len(e))), e...)
	}
	for _, c := range []struct {
		encoding *Encoding
		stream   []byte
	}{{JSON, lines}, {Protobuf, frames}} {
		for size := 1; size < len(c.stream); size += 1 + size/3 {
			var seen []string
			reading := Events{Encoding: c.encoding, Each: func(b []byte) error { seen = append(seen, string(b)); return nil }}
			counting := Events{Encoding: c.encoding}
			for b := c.stream; len(b) > 0; b = b[min(size, len(b)):] {
				piece := b[:min(size, len(b))]
				if err := reading.Write(piece); err != nil {
					t.Fatal(err)
				}
				if err := counting.Write(piece); err != nil {
					t.Fatal(err)
				}
			}
			if strings.Join(seen, "|") != strings.Join(events, "|") || reading.Count != len(events) || counting.Count != len(events) {
				t.Fatalf("%s in pieces of %d: %d and %d events", c.encoding.Name, size, reading.Count, counting.Count)
			}
		}
	}
	if (&Events{Encoding: Protobuf}).Write([]byte{255, 255, 255, 255}) == nil {
		t.Error("an event of 4 GiB is waited for")
	}
}
