package limits

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/balsahq/balsa/fault"
)

// Pace is the least speed at which the body of a request has to arrive.
type Pace struct {
	// Start is how long the first byte may take.
	Start time.Duration
	// Rate is how many bytes a second must arrive after that.
	Rate int
}

// DefaultPace gives a body of 3 MiB about a minute, and an empty one 5 seconds.
var DefaultPace = Pace{Start: 5 * time.Second, Rate: 64 << 10}

// Paced cuts off bodies that arrive too slowly: their reader gets a Status with code 408 as its error. The filter needs the
// connection's own ResponseWriter, and RequestInfo: bodies of long-running requests are not limited.
func Paced(next http.Handler, longRunning apirequest.LongRunningRequestCheck, pace Pace) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if !ok || r.Body == nil || r.Body == http.NoBody || longRunning(r, info) {
			next.ServeHTTP(w, r)
			return
		}
		b := &paced{ReadCloser: r.Body, conn: http.NewResponseController(w), pace: pace}
		defer b.end()
		// When the read deadline of a connection passes, net/http ends the context of the request before an answer could be
		// written. So the end of that context is passed on only when the body was not late.
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

// paced is a body whose next bytes have to arrive in time. It has a timer and sets the connection's read deadline only when the
// body is late: over HTTP/2 each change of the deadline is a message to the goroutine that all requests of the connection share.
type paced struct {
	io.ReadCloser
	conn *http.ResponseController
	pace Pace

	mu    sync.Mutex
	due   time.Time   // when the next bytes are due
	timer *time.Timer // nil until the body is read; asks what is due when it ends
	over  bool        // the body, or its request, has ended: nothing is due any more
	broke bool        // the connection's deadline was set, because the body was late
}

// late reports whether the body was broken off.
func (b *paced) late() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.broke
}

// begin starts the timer, once.
func (b *paced) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer == nil && !b.over {
		b.due = time.Now().Add(b.pace.Start)
		b.timer = time.AfterFunc(b.pace.Start, fault.Contained("control/limits", b.expire))
	}
}

// expire cuts the body off if it is late. A writer without deadlines belongs to a client in this process, which is not limited.
func (b *paced) expire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return
	}
	if left := time.Until(b.due); left > 0 {
		b.timer.Reset(left)
		return
	}
	b.broke = b.conn.SetReadDeadline(time.Unix(1, 0)) == nil
}

// end is called when the request has been answered. The connection's writer must not be used after that.
func (b *paced) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stop()
}

// complete is called when the body has ended. The handler may take longer than the body.
func (b *paced) complete() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broke && !b.over { // in the last moment
		_ = b.conn.SetReadDeadline(time.Time{})
	}
	b.stop()
}

func (b *paced) stop() {
	b.over = true
	if b.timer != nil {
		b.timer.Stop()
	}
}

// came counts n bytes.
func (b *paced) came(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.due = b.due.Add(time.Duration(n) * time.Second / time.Duration(b.pace.Rate))
}

// Read implements io.Reader.
func (b *paced) Read(p []byte) (int, error) {
	b.begin()
	n, err := b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = failure(http.StatusRequestTimeout, metav1.StatusReasonTimeout, fmt.Sprintf("the request's body arrives too slowly: after %v it must arrive with at least %d bytes per second", b.pace.Start, b.pace.Rate))
	case err != nil:
		b.complete()
	case n > 0:
		b.came(n)
	}
	return n, err
}
