package flow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// What one request may be.
const (
	// MaxURI is the length of a request's path and query, in bytes.
	MaxURI = 64 << 10
	// MaxTerms is how many conditions a label or field selector may have; each is tried on each object of a list.
	MaxTerms = 500
	// A body that is not larger than this, in bytes, is read before its request takes a seat.
	readAhead = 64 << 10
)

// Pace is how fast the body of a request has to come.
type Pace struct {
	// Start is how long the first byte may take.
	Start time.Duration
	// Rate is how many bytes a second must come after that.
	Rate int
}

// DefaultPace lets a body of 3 MiB take a minute, and one of nothing 5 seconds.
var DefaultPace = Pace{Start: 5 * time.Second, Rate: 64 << 10}

// Short refuses requests that are too long to look at, with 414 or 400. It stands before everything that parses the URL.
func Short(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.RequestURI) > MaxURI {
			refuse(w, r, s, failure(http.StatusRequestURITooLong, metav1.StatusReasonBadRequest, fmt.Sprintf("the URL has %d bytes; at most %d are looked at", len(r.RequestURI), MaxURI)))
			return
		}
		if len(r.URL.RawQuery) > MaxTerms { // a shorter one cannot have too many
			q := r.URL.Query()
			for _, name := range []string{"labelSelector", "fieldSelector"} {
				if n := terms(q.Get(name), name == "labelSelector"); n > MaxTerms {
					refuse(w, r, s, apierrors.NewBadRequest(fmt.Sprintf("%s has %d conditions; at most %d are looked at", name, n, MaxTerms)))
					return
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// Paced breaks off bodies that come too slowly: whoever reads them gets a Status with code 408 for an error. It stands
// where the connection's own writer is at hand, and behind RequestInfo: bodies of streams may take their time.
func Paced(next http.Handler, longRunning apirequest.LongRunningRequestCheck, pace Pace) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if !ok || r.Body == nil || r.Body == http.NoBody || longRunning(r, info) {
			next.ServeHTTP(w, r)
			return
		}
		b := &paced{ReadCloser: r.Body, conn: http.NewResponseController(w), pace: pace}
		// A connection whose deadline has passed ends its request's context, before anybody could be told why. So the end of
		// that context is passed on unless the body was late.
		ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
		defer cancel()
		defer context.AfterFunc(r.Context(), func() {
			if !b.late() {
				cancel()
			}
		})()
		r = r.WithContext(ctx)
		r.Body = b
		next.ServeHTTP(w, r)
	})
}

// terms counts the conditions of a selector: what commas part. Those of labels have sets of values, in parentheses after
// their operators "in" and "notin", whose commas part no conditions; any other parenthesis hides none.
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

// paced is a body whose next bytes have to come in time.
type paced struct {
	io.ReadCloser
	conn  *http.ResponseController
	pace  Pace
	due   time.Time
	never bool         // the connection takes no deadline: it is none of the network's
	limit atomic.Int64 // due in nanoseconds, for late; 0 is no limit
}

// late reports whether the next bytes were due before now.
func (b *paced) late() bool {
	limit := b.limit.Load()
	return limit != 0 && time.Now().UnixNano() >= limit
}

func (b *paced) until(t time.Time) error {
	b.due = t
	if t.IsZero() {
		b.limit.Store(0)
	} else {
		b.limit.Store(t.UnixNano())
	}
	return b.conn.SetReadDeadline(t)
}

// Read implements io.Reader.
func (b *paced) Read(p []byte) (int, error) {
	if b.due.IsZero() && !b.never {
		b.never = b.until(time.Now().Add(b.pace.Start)) != nil
	}
	n, err := b.ReadCloser.Read(p)
	switch {
	case b.never:
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = failure(http.StatusRequestTimeout, metav1.StatusReasonTimeout, fmt.Sprintf("the request's body comes too slowly: after %v it must come with at least %d bytes a second", b.pace.Start, b.pace.Rate))
	case err != nil:
		_ = b.until(time.Time{}) // the handler may take longer than the body
		b.never = true
	case n > 0:
		_ = b.until(b.due.Add(time.Duration(n) * time.Second / time.Duration(b.pace.Rate)))
	}
	return n, err
}

// ReadFirst takes small bodies off the network before their requests wait for a seat and hold it. It stands before Fair.
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

// unread is the answer to a body that could not be read to its end.
func unread(err error) *apierrors.StatusError {
	if status := (*apierrors.StatusError)(nil); errors.As(err, &status) {
		return status
	}
	return apierrors.NewBadRequest("the request's body broke off: " + err.Error())
}

// body is what was read, closed with what it was read from.
type body struct {
	io.Reader
	io.Closer
}
