package limits

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
)

// maxNesting is how deep messages, or objects and arrays, may lie in each other.
const maxNesting = 1000

// Nested refuses custom resource definitions that are nested deeper than anybody's, with 400. Their schemas are the one type
// of the API that holds itself, and upstream decodes and validates it by recursion: 2 MiB of protobuf, where nothing bounds
// it, would take more than a goroutine's largest stack, which ends the process; 70 KiB of JSON take seconds. It reads
// bodies of up to max bytes.
func Nested(next http.Handler, max int64, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || !strings.HasPrefix(r.URL.Path, "/apis/apiextensions.k8s.io/") {
			next.ServeHTTP(w, r)
			return
		}
		data, err := io.ReadAll(io.LimitReader(r.Body, max+1))
		if err != nil {
			refuse(w, r, s, unread(err))
			return
		}
		depth := brackets
		if strings.HasPrefix(r.Header.Get("Content-Type"), runtime.ContentTypeProtobuf) {
			depth = nesting
		}
		if depth(data) > maxNesting {
			refuse(w, r, s, apierrors.NewBadRequest(fmt.Sprintf("what the body holds lies in each other more than %d deep", maxNesting)))
			return
		}
		r.Body = body{bytes.NewReader(data), r.Body}
		next.ServeHTTP(w, r)
	})
}

// brackets is how deep objects and arrays of JSON lie in each other, or those of YAML that are written like JSON's: by
// indentation, a body of 3 MiB does not get far.
func brackets(data []byte) int {
	depth, deepest, quoted := 0, 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case quoted:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

// nesting is how deep the messages of a protobuf encoding can lie in each other, without knowing their types: whatever has a
// length counts as a message as long as it can be read as one. Every byte is looked at once.
func nesting(data []byte) int {
	pos := 0
	if bytes.HasPrefix(data, []byte("k8s\x00")) {
		pos = 4
	}
	ends, deepest := []int{len(data)}, 0
	for len(ends) > 0 {
		end := ends[len(ends)-1]
		if pos >= end {
			ends = ends[:len(ends)-1]
			continue
		}
		next, length, ok := protoField(data[:end], pos)
		switch {
		case !ok: // no message after all: go on behind it
			pos, ends = end, ends[:len(ends)-1]
		case length < 0:
			pos = next
		default:
			pos, ends = next, append(ends, next+length)
			deepest = max(deepest, len(ends)-1)
		}
	}
	return deepest
}

// protoField reads a field's head. What has a length starts at next; of everything else next is its end and length is -1.
func protoField(data []byte, pos int) (next, length int, ok bool) {
	tag, n := binary.Uvarint(data[pos:])
	if n <= 0 || tag>>3 == 0 {
		return 0, 0, false
	}
	pos += n
	switch tag & 7 {
	case 0:
		_, n := binary.Uvarint(data[pos:])
		return pos + n, -1, n > 0
	case 1:
		return pos + 8, -1, pos+8 <= len(data)
	case 5:
		return pos + 4, -1, pos+4 <= len(data)
	case 2:
		size, n := binary.Uvarint(data[pos:])
		if n <= 0 || size > uint64(len(data)-pos-n) {
			return 0, 0, false
		}
		return pos + n, int(size), true
	case 3, 4: // a group's begin and end: decoders pass over what is between
		return pos, -1, true
	}
	return 0, 0, false
}
