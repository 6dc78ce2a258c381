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

// maxNesting bounds the nesting depth of messages, or of objects and arrays.
const maxNesting = 1000

// Nested refuses custom resource definitions that are nested deeper than maxNesting, with 400. Their schemas are the only
// recursive type of the API, and upstream decodes and validates them by recursion: 2 MiB of protobuf, where upstream has no
// bound, would overflow the largest possible stack of a goroutine, which ends the process; 70 KiB of JSON take seconds. It
// reads bodies of up to max bytes.
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
			refuse(w, r, s, apierrors.NewBadRequest(fmt.Sprintf("the body is nested more than %d levels deep", maxNesting)))
			return
		}
		r.Body = body{bytes.NewReader(data), r.Body}
		next.ServeHTTP(w, r)
	})
}

// brackets returns the nesting depth of objects and arrays of JSON, and of YAML in flow style. Nesting by indentation
// cannot get deep within 3 MiB.
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

// nesting returns an upper bound of the nesting depth of protobuf messages, without their types: every field with a length
// that can be parsed as a message counts as one. It reads every byte once.
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
		case !ok: // not a message: continue after the field
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

// protoField reads the head of a field. For a field with a length, next is the start of its content; for all others next is
// the end of the field and length is -1.
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
	case 3, 4: // begin and end of a group, whose content decoders skip
		return pos, -1, true
	}
	return 0, 0, false
}
