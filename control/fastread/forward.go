package fastread

import (
	"bytes"
	"cmp"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/balsahq/balsa/control/storage"
)

// forward lets next answer a read of objects that only next knows, such as custom resources, and offers its storage to
// leave the objects as texts (storage.Verbatim). next then writes an empty object or list, and forward puts the texts
// into it. It returns false, and has done nothing, if the request does not allow an offer.
func (h *Handler) forward(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest || info.Subresource != "" || !strings.Contains(info.APIGroup, ".") {
		return false // the groups of custom resources are domains
	}
	if info.Verb != "get" && info.Verb != "list" || wantsObjects(r.Context()) {
		return false
	}
	if protobuf, ok := encodingOf(r); !ok || protobuf {
		return false
	}
	if _, ok := scopeOf(info, info.Namespace != "", r.URL.RawQuery); !ok {
		return false // next reads what was authorized, but may answer with something other than objects
	}
	shell := &shell{ResponseWriter: w, list: info.Verb == "list"}
	next.ServeHTTP(responsewriter.WrapForHTTP1Or2(shell), r.WithContext(storage.WithVerbatim(r.Context(), &shell.offer)))
	shell.finish(h, r)
	return true
}

// shell passes the answer of next through until the storage takes the offer. From then on it keeps the answer, which is
// small.
type shell struct {
	http.ResponseWriter
	offer storage.Verbatim
	list  bool
	code  int
	body  []byte
}

var _ responsewriter.UserProvidedDecorator = (*shell)(nil)

// Unwrap implements responsewriter.UserProvidedDecorator.
func (s *shell) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (s *shell) WriteHeader(code int) {
	if !s.offer.Taken {
		s.ResponseWriter.WriteHeader(code)
		return
	}
	s.code = code
}

// Write implements http.ResponseWriter.
func (s *shell) Write(b []byte) (int, error) {
	if !s.offer.Taken {
		return s.ResponseWriter.Write(b)
	}
	s.body = append(s.body, b...)
	return len(b), nil
}

var (
	emptyItems = []byte(`"items":[]`)
	listEnd    = []byte("]")
)

// finish writes the texts inside the answer that was kept.
func (s *shell) finish(h *Handler, r *http.Request) {
	if !s.offer.Taken {
		return
	}
	a := &answer{h: h, stored: s.offer.Texts, tail: []byte{'\n'}}
	at := bytes.Index(s.body, emptyItems)
	switch {
	case s.code != 0 && s.code != http.StatusOK, s.list && at < 0, s.Header().Get("Content-Type") != runtime.ContentTypeJSON:
		s.ResponseWriter.WriteHeader(cmp.Or(s.code, http.StatusOK)) // next failed after the read
		_, _ = s.ResponseWriter.Write(s.body)
		return
	case s.list:
		at += len(emptyItems) - len(listEnd)
		a.head, a.tail = s.body[:at], s.body[at:]
	}
	a.write(s.ResponseWriter, r)
}
