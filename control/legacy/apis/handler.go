package apis

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/warning"
)

type contextKey struct{}

// asked is the request for an old version that a context belongs to.
type asked struct {
	*mapping
	sub string // subresource
}

// Asked reports whether a request asked for an old version. Front has rewritten its path to the served version.
func Asked(r *http.Request) bool { return of(r.Context()) != nil }

func of(ctx context.Context) *asked {
	a, _ := ctx.Value(contextKey{}).(*asked)
	return a
}

// Front gives requests for old versions the path of the version that serves them. It stands before everything that looks
// at the path.
func Front(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		old, resource, sub, rest := split(r.URL.Path)
		m := find(old, resource)
		if m == nil {
			if Asked(r) { // made by this process for such a request
				r = r.WithContext(context.WithValue(r.Context(), contextKey{}, (*asked)(nil)))
			}
			next.ServeHTTP(w, r)
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), contextKey{}, &asked{mapping: m, sub: sub}))
		r.URL = moved(r.URL, "/apis/"+m.served.String()+rest)
		r.RequestURI = r.URL.RequestURI()
		next.ServeHTTP(w, r)
	})
}

// moved is u with another path.
func moved(u *url.URL, path string) *url.URL {
	to := *u
	to.Path, to.RawPath = path, ""
	return &to
}

// Convert hands next the bodies of requests for old versions in the served version, and converts the answers back. It
// reads bodies of up to max bytes.
func Convert(next http.Handler, max int64, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := of(r.Context())
		if a == nil {
			next.ServeHTTP(w, r)
			return
		}
		r, metadataOnly := acceptJSON(r)
		if !metadataOnly {
			warning.AddWarning(r.Context(), "", a.notice())
		}
		if a.sub != "" && a.sub != "status" {
			next.ServeHTTP(w, r)
			return
		}
		c := call{asked: a, next: next, max: max}
		if err := c.serve(w, r); err != nil {
			responsewriters.ErrorNegotiated(err, s, schema.GroupVersion{}, w, r)
		}
	})
}

func (m *mapping) notice() string {
	return fmt.Sprintf("%s %s is deprecated: it is read and stored as %s %s; use that version", m.old, m.kind.name, m.served, m.kind.name)
}

// acceptJSON makes a request ask for JSON where it asks for an object, and tells whether it asks for metadata alone.
func acceptJSON(r *http.Request) (changed *http.Request, metadataOnly bool) {
	var clauses []string
	for clause := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		if !strings.Contains(clause, "as=") {
			clause = runtime.ContentTypeJSON
		}
		metadataOnly = metadataOnly || strings.Contains(clause, "as=PartialObjectMetadata")
		clauses = append(clauses, clause)
	}
	r = r.Clone(r.Context())
	r.Header.Set("Accept", strings.Join(clauses, ","))
	r.Header.Del("Accept-Encoding")
	return r, metadataOnly
}

// call is the way of one request.
type call struct {
	*asked
	next http.Handler
	max  int64
}

func (c call) serve(w http.ResponseWriter, r *http.Request) error {
	switch r.Method {
	case http.MethodPost, http.MethodPut:
		b, err := c.read(r)
		if err != nil {
			return err
		}
		data, unknown, err := c.toServed(b)
		if err != nil {
			return err
		}
		if err := unknownFields(r, unknown); err != nil {
			return err
		}
		return c.forward(w, withBody(r, data, runtime.ContentTypeJSON))
	case http.MethodPatch:
		return c.patch(w, r)
	case http.MethodDelete:
		b, err := c.read(r)
		if err != nil {
			return err
		}
		return c.forward(w, withBody(r, c.deleteOptions(b), r.Header.Get("Content-Type")))
	}
	return c.forward(w, r)
}

var errTooLarge = errors.New("the body is too large")

func (c call) read(r *http.Request) (body, error) {
	if r.Body == nil {
		return body{}, nil
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, c.max+1))
	if err != nil {
		return body{}, apierrors.NewBadRequest(err.Error())
	}
	if int64(len(data)) > c.max {
		return body{}, apierrors.NewRequestEntityTooLargeError(errTooLarge.Error())
	}
	return body{data: data, contentType: r.Header.Get("Content-Type")}, nil
}

// unknownFields treats fields that the old version does not have as the request asks: it warns, refuses or ignores them.
func unknownFields(r *http.Request, unknown []error) error {
	switch r.URL.Query().Get("fieldValidation") {
	case metav1.FieldValidationIgnore:
	case metav1.FieldValidationStrict:
		if len(unknown) > 0 {
			return apierrors.NewBadRequest(runtime.NewStrictDecodingError(unknown).Error())
		}
	default:
		for _, err := range unknown {
			warning.AddWarning(r.Context(), "", err.Error())
		}
	}
	return nil
}

// deleteOptions are the options of a deletion, without the name of the old version, which typed clients write there.
func (c call) deleteOptions(b body) []byte {
	fields := map[string]json.RawMessage{}
	if json.Unmarshal(b.data, &fields) != nil || string(fields["apiVersion"]) != `"`+c.old.String()+`"` {
		return b.data
	}
	fields["apiVersion"] = json.RawMessage(`"` + c.served.String() + `"`)
	data, err := json.Marshal(fields)
	if err != nil {
		return b.data
	}
	return data
}

func withBody(r *http.Request, data []byte, contentType string) *http.Request {
	r = r.Clone(r.Context())
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	r.Header.Set("Content-Type", contentType)
	r.Header.Del("Content-Length")
	return r
}
