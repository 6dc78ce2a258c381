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

// retryWatch is the Retry-After, in seconds, for a client that holds too many streams.
const retryWatch = 10

// Watches bounds the streams (watches, exec, followed logs) that one user holds from one address. Priority and fairness
// counts a watch only while it begins; afterwards it uses memory, which this filter bounds.
type Watches struct {
	max         int
	longRunning apirequest.LongRunningRequestCheck
	serializer  runtime.NegotiatedSerializer

	mu   sync.Mutex
	held map[holder]int
}

// holder is the key under which streams are counted: tenant and client address. The pods of a service account are counted
// separately if their tokens name the pod, else by the address of their node.
type holder struct{ tenant, host string }

// NewWatches returns a filter that allows each holder max streams.
func NewWatches(max int, longRunning apirequest.LongRunningRequestCheck, s runtime.NegotiatedSerializer) *Watches {
	return &Watches{max: max, longRunning: longRunning, serializer: s, held: map[holder]int{}}
}

// Bound refuses streams above the bound with 429 and Retry-After. It comes after authentication and before impersonation.
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
