package limits

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Bounds of one request.
const (
	// MaxURI bounds the length of a request's path and query, in bytes.
	MaxURI = 64 << 10
	// MaxTerms bounds the conditions of a label or field selector; each is evaluated for each object of a list.
	MaxTerms = 500
	// A body that is not larger than this, in bytes, is read before its request takes a seat.
	readAhead = 64 << 10
)

// Short refuses requests with a too long URL or selector, with 414 or 400. It comes before every filter that parses the
// URL.
func Short(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.RequestURI) > MaxURI {
			refuse(w, r, s, failure(http.StatusRequestURITooLong, metav1.StatusReasonBadRequest, fmt.Sprintf("the URL has %d bytes; at most %d are allowed", len(r.RequestURI), MaxURI)))
			return
		}
		if len(r.URL.RawQuery) > MaxTerms { // a shorter query cannot have more terms
			q := r.URL.Query()
			for _, name := range []string{"labelSelector", "fieldSelector"} {
				if n := terms(q.Get(name), name == "labelSelector"); n > MaxTerms {
					refuse(w, r, s, apierrors.NewBadRequest(fmt.Sprintf("%s has %d conditions; at most %d are allowed", name, n, MaxTerms)))
					return
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// terms counts the conditions of a selector, which commas separate. With sets, for label selectors, commas in parentheses
// after the operators "in" and "notin" separate values and are not counted; commas in other parentheses are.
func terms(selector string, sets bool) int {
	n, inside := 1, false
	for i := range len(selector) {
		switch selector[i] {
		case '(':
			inside = inside || sets && strings.HasSuffix(strings.TrimRight(selector[:i], " \t\r\n"), "in")
		case ')':
			inside = false
		case ',':
			if !inside {
				n++
			}
		}
	}
	return n
}

func failure(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}

// ReadFirst reads small bodies from the network before their requests wait for a seat and hold it. It comes before Fair.
func ReadFirst(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b, ok := r.Body.(*paced); ok && r.ContentLength > 0 && r.ContentLength <= readAhead {
			data := bytes.NewBuffer(make([]byte, 0, r.ContentLength+bytes.MinRead))
			if _, err := data.ReadFrom(b); err != nil {
				refuse(w, r, s, unread(err))
				return
			}
			r.Body = body{data, b}
		}
		next.ServeHTTP(w, r)
	})
}

// unread returns the response to a body that could not be read to its end.
func unread(err error) *apierrors.StatusError {
	if status := (*apierrors.StatusError)(nil); errors.As(err, &status) {
		return status
	}
	return apierrors.NewBadRequest("the request's body broke off: " + err.Error())
}

// body is a buffered body; Close closes the original body.
type body struct {
	io.Reader
	io.Closer
}
