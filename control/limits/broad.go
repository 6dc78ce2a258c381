package limits

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/yaml"
)

const (
	// MaxSiblings bounds the entries of one list or map of an object that is written.
	MaxSiblings = 10_000
	// weightOfManagers is the weight of each entry of managedFields: it is a set of fields, which upstream compares with the
	// sets of the other entries.
	weightOfManagers = 20
	// A body that is shorter, in bytes, cannot have that many entries: each takes at least a value and a comma.
	broadFrom = 2 * MaxSiblings
)

// Broad refuses bodies of writes with a list or map of more than MaxSiblings entries, with 413. Upstream's field management
// and validation take time that grows with the square of that number: 100,000 labels in one request would keep a core busy
// for minutes, long after the client has given up. It reads bodies of up to max bytes.
func Broad(next http.Handler, max int64, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if !ok || r.Body == nil || r.ContentLength >= 0 && r.ContentLength < broadFrom || !info.IsResourceRequest || !slices.Contains([]string{"create", "update", "patch"}, info.Verb) ||
			slices.Contains([]string{"proxy", "exec", "attach", "portforward"}, info.Subresource) {
			next.ServeHTTP(w, r)
			return
		}
		data, err := io.ReadAll(io.LimitReader(r.Body, max+1))
		if err != nil {
			refuse(w, r, s, unread(err))
			return
		}
		if int64(len(data)) <= max && breadth(data, r.Header.Get("Content-Type"), s) > MaxSiblings {
			refuse(w, r, s, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("a list or map of the body has more than %d entries", MaxSiblings)))
			return
		}
		r.Body = body{io.MultiReader(bytes.NewReader(data), r.Body), r.Body}
		next.ServeHTTP(w, r)
	})
}

// breadth returns the number of entries of the largest list or map in a body; 0 for a body that cannot be parsed, which the
// decoder will refuse.
func breadth(data []byte, contentType string, s runtime.NegotiatedSerializer) int {
	if len(data) < broadFrom {
		return 0
	}
	kind, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return 0
	}
	switch kind {
	case runtime.ContentTypeYAML, "application/apply-patch+yaml":
		if json.Valid(data) { // kubectl sends JSON, which is much cheaper to check than YAML
			break
		}
		if data, err = yaml.YAMLToJSON(data); err != nil {
			return 0
		}
	case runtime.ContentTypeCBOR, "application/apply-patch+cbor":
		var v any
		if direct.Unmarshal(data, &v) != nil {
			return 0
		}
		return widest(reflect.ValueOf(v))
	case runtime.ContentTypeProtobuf:
		known, ok := runtime.SerializerInfoForMediaType(s.SupportedMediaTypes(), kind)
		if !ok {
			return 0
		}
		obj, _, err := known.Serializer.Decode(data, nil, nil)
		if err != nil {
			return 0
		}
		return widest(reflect.ValueOf(obj))
	}
	return siblings(data)
}

// siblings returns the largest number of commas within one pair of brackets of JSON. It ignores parts that are nested
// deeper than any decoder accepts.
func siblings(data []byte) int {
	const deepest = 10_000
	type level struct{ entries, weight int32 }
	levels, most, quoted := []level{{weight: 1}}, int32(0), false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case quoted:
		case c == '{' || c == '[':
			if len(levels) > deepest {
				return int(most) + 1
			}
			inside := level{weight: 1}
			if bytes.HasSuffix(data[:i], []byte(`"managedFields":`)) {
				inside.weight = weightOfManagers
			}
			levels = append(levels, inside)
		case c == '}' || c == ']':
			levels = levels[:max(1, len(levels)-1)]
		case c == ',':
			here := &levels[len(levels)-1]
			here.entries += here.weight
			most = max(most, here.entries)
		}
	}
	return int(most) + 1
}

// widest returns the length of the longest list or map below a value; a byte slice counts as one value.
func widest(v reflect.Value) int {
	most := 0
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			most = widest(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			most = max(most, widest(v.Field(i)))
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return 0
		}
		most = v.Len()
		for i := range v.Len() {
			most = max(most, widest(v.Index(i)))
		}
	case reflect.Map:
		most = v.Len()
		for it := v.MapRange(); it.Next(); {
			most = max(most, widest(it.Value()))
		}
	}
	return most
}
