package fastread

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strconv"
)

// magic starts every stored protobuf object, and every protobuf answer
// (k8s.io/apimachinery/pkg/runtime/serializer/protobuf).
var magic = []byte("k8s\x00")

// Field numbers of runtime.Unknown, of every object, of metav1.ObjectMeta and of every list, from the generated.proto
// files of k8s.io/apimachinery.
const (
	unknownType, unknownRaw, unknownEncoding, unknownContent = 1, 2, 3, 4

	objectMeta = 1

	metaResourceVersion, metaLabels = 6, 11

	listMeta, listItems = 1, 2

	mapKey, mapValue = 1, 2
)

const (
	varint = iota
	fixed64
	delimited
	_
	_
	fixed32
)

// errShape: these bytes are not what this version of the API writes.
var errShape = errors.New("fastread: not a stored protobuf object")

// field is one field of a message: b[start:end]. The content of a delimited field is b[body:end].
type field struct {
	number, kind     int
	start, body, end int
}

// next reads the field of b that begins at i.
func next(b []byte, i int) (f field, err error) {
	tag, n := binary.Uvarint(b[i:])
	if n <= 0 {
		return f, errShape
	}
	f = field{number: int(tag >> 3), kind: int(tag & 7), start: i, body: i + n}
	switch f.kind {
	case varint:
		_, n := binary.Uvarint(b[f.body:])
		if n <= 0 {
			return f, errShape
		}
		f.end = f.body + n
	case fixed64:
		f.end = f.body + 8
	case fixed32:
		f.end = f.body + 4
	case delimited:
		size, n := binary.Uvarint(b[f.body:])
		if n <= 0 || size > uint64(len(b)) {
			return f, errShape
		}
		f.body += n
		f.end = f.body + int(size)
	default:
		return f, errShape
	}
	if f.end > len(b) {
		return f, errShape
	}
	return f, nil
}

// envelope splits a stored object into its type, as a TypeMeta message, and its own message.
func envelope(data []byte) (typeMeta, object []byte, err error) {
	data, ok := bytes.CutPrefix(data, magic)
	if !ok {
		return nil, nil, errShape
	}
	for i := 0; i < len(data); {
		f, err := next(data, i)
		if err != nil {
			return nil, nil, err
		}
		switch {
		case f.number == unknownType && f.kind == delimited:
			typeMeta = data[f.body:f.end]
		case f.number == unknownRaw && f.kind == delimited:
			object = data[f.body:f.end]
		case (f.number == unknownEncoding || f.number == unknownContent) && f.body == f.end:
		default:
			return nil, nil, errShape
		}
		i = f.end
	}
	return typeMeta, object, nil
}

// item is an object's message with the position of its resourceVersion.
//
//	meta field │ before ╎ resourceVersion ╎ after │ rest
type item struct {
	object   []byte
	revision int64
	// Offsets in object: the start of the metadata, the start and the end of the bytes that the resourceVersion
	// replaces, the end of the metadata.
	begin, at, until, end uint32
}

func (it *item) before() []byte { return it.object[it.begin:it.at] }
func (it *item) after() []byte  { return it.object[it.until:it.end] }
func (it *item) rest() []byte   { return it.object[it.end:] }

// digits returns the number of decimal digits of the resourceVersion.
func (it *item) digits() int {
	n := 1
	for v := it.revision; v >= 10; v /= 10 {
		n++
	}
	return n
}

// parse finds the position of the resourceVersion. labels, if not nil, is called with each label.
func parse(object []byte, revision int64, labels func(key, value []byte)) (it item, err error) {
	if len(object) == 0 || len(object) > math.MaxInt32 || revision < 0 {
		return it, errShape
	}
	m, err := next(object, 0)
	if err != nil || m.number != objectMeta || m.kind != delimited {
		return it, errShape
	}
	meta := object[:m.end]
	at, until := -1, 0
	for i := m.body; i < len(meta); {
		f, err := next(meta, i)
		if err != nil {
			return it, err
		}
		switch {
		case f.number == metaResourceVersion && f.kind == delimited:
			at, until = f.start, f.end
		case f.number > metaResourceVersion && at < 0:
			at, until = f.start, f.start
		}
		if f.number == metaLabels && f.kind == delimited && labels != nil {
			if err := label(meta[f.body:f.end], labels); err != nil {
				return it, err
			}
		}
		if at >= 0 && labels == nil {
			break
		}
		i = f.end
	}
	if at < 0 {
		at, until = len(meta), len(meta)
	}
	return item{object: object, revision: revision, begin: uint32(m.body), at: uint32(at), until: uint32(until), end: uint32(m.end)}, nil
}

// label reads one entry of a map of strings.
func label(entry []byte, labels func(key, value []byte)) error {
	var key, value []byte
	for i := 0; i < len(entry); {
		f, err := next(entry, i)
		if err != nil {
			return err
		}
		switch {
		case f.number == mapKey && f.kind == delimited:
			key = entry[f.body:f.end]
		case f.number == mapValue && f.kind == delimited:
			value = entry[f.body:f.end]
		}
		i = f.end
	}
	labels(key, value)
	return nil
}

func uvarintSize(n int) int {
	size := 1
	for ; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}

func (it *item) metaSize() int {
	n := it.digits()
	return int(it.at-it.begin) + 1 + uvarintSize(n) + n + int(it.end-it.until)
}

// size is the length of the object's message.
func (it *item) size() int {
	m := it.metaSize()
	return 1 + uvarintSize(m) + m + len(it.rest())
}

// append appends the object's message with its resourceVersion.
func (it *item) append(b []byte) []byte {
	b = appendHead(b, objectMeta, it.metaSize())
	b = append(b, it.before()...)
	b = appendHead(b, metaResourceVersion, it.digits())
	b = strconv.AppendInt(b, it.revision, 10)
	b = append(b, it.after()...)
	return append(b, it.rest()...)
}

// appendHead appends the field number and the length of a delimited field.
func appendHead(b []byte, number, size int) []byte {
	b = binary.AppendUvarint(b, uint64(number)<<3|delimited)
	return binary.AppendUvarint(b, uint64(size))
}

// openObject appends a runtime.Unknown up to the field of its raw message, openEnvelope up to a raw message of the
// given size, and closeEnvelope the fields after it.
func openObject(b, typeMeta []byte) []byte {
	b = append(b, magic...)
	b = appendHead(b, unknownType, len(typeMeta))
	return append(b, typeMeta...)
}

func openEnvelope(b, typeMeta []byte, size int) []byte {
	return appendHead(openObject(b, typeMeta), unknownRaw, size)
}

func closeEnvelope(b []byte) []byte { return append(b, closing...) }

// closing is two empty fields.
var closing = string(appendHead(appendHead(nil, unknownEncoding, 0), unknownContent, 0))
