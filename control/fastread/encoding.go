package fastread

import (
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// protobufs and jsons are the Accept headers that this package understands: those that client-go and kubectl send for
// objects, and none.
var (
	protobufs = map[string]bool{
		runtime.ContentTypeProtobuf:                                  true,
		runtime.ContentTypeProtobuf + ",application/json":            true,
		runtime.ContentTypeProtobuf + ", application/json":           true,
		"application/vnd.kubernetes.protobuf,application/json,*/*":   true,
		"application/vnd.kubernetes.protobuf, application/json, */*": true,
	}
	jsons = map[string]bool{"": true, "*/*": true, runtime.ContentTypeJSON: true, "application/json, */*": true, "application/json,*/*": true}
)

// encodingOf returns the encoding that the client accepts; ok is false if it may want another form.
func encodingOf(r *http.Request) (protobuf, ok bool) {
	accept := r.Header["Accept"]
	if len(accept) > 1 {
		return false, false
	}
	text := strings.Join(accept, "")
	if protobufs[text] {
		return true, true
	}
	if !jsons[text] {
		return false, false
	}
	// As in upstream, these clients get indented JSON.
	for _, human := range []string{"curl", "Wget", "Mozilla/5.0"} {
		if strings.HasPrefix(r.UserAgent(), human) {
			return false, false
		}
	}
	return false, true
}
