package limits

import (
	"net"
	"net/http"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// retryWatch is when, in seconds, a client that holds too many streams may come back.
const retryWatch = 10

// Watches bounds the streams (watches, exec, logs that are followed) that one user holds from one address. Priority and
// fairness counts a watch only while it begins; what it holds from then on is memory, and this is what bounds it.
type Watches struct {
	max         int
	longRunning apirequest.LongRunningRequestCheck
	serializer  runtime.NegotiatedSerializer

	mu   sync.Mutex
	held map[holder]int
}

// holder is who holds streams. One pod of a service account takes nothing from another; where a token does not say for
// which pod it is, pods of other nodes are told apart by the address.
type holder struct{ tenant, host string }

// NewWatches bounds each client to max streams.
func NewWatches(max int, longRunning apirequest.LongRunningRequestCheck, s runtime.NegotiatedSerializer) *Watches {
	return &Watches{max: max, longRunning: longRunning, serializer: s, held: map[holder]int{}}
}

// Bound refuses what is too much with 429 and Retry-After. It stands behind authentication, before impersonation.
func (w *Watches) Bound(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		u, known := apirequest.UserFrom(r.Context())
		if !ok || !known || !w.longRunning(r, info) {
			next.ServeHTTP(rw, r)
			return
		}
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			host = r.RemoteAddr
		}
		c := holder{tenant(u), host}
		if !w.enter(c) {
			refuse(rw, r, w.serializer, apierrors.NewTooManyRequests("this client holds "+strconv.Itoa(w.max)+
				" watches and streams; end some, or watch more objects with one", retryWatch))
			return
		}
		defer w.leave(c)
		next.ServeHTTP(rw, r)
	})
}

func (w *Watches) enter(c holder) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held[c] >= w.max {
		return false
	}
	w.held[c]++
	return true
}

func (w *Watches) leave(c holder) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held[c]--; w.held[c] == 0 {
		delete(w.held, c)
	}
}

// refuse answers with a Status in the encoding the client asked for.
func refuse(w http.ResponseWriter, r *http.Request, s runtime.NegotiatedSerializer, err *apierrors.StatusError) {
	if d := err.ErrStatus.Details; d != nil && d.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
	}
	gv := schema.GroupVersion{Version: "v1"}
	if info, ok := apirequest.RequestInfoFrom(r.Context()); ok {
		gv = schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	}
	responsewriters.ErrorNegotiated(err, s, gv, w, r)
}
