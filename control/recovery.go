package control

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/balsahq/balsa/fault"
)

// withPanicRecovery keeps a panic in the request that raised it: in an authorizer, an admission plug-in, a strategy, a handler.
// The request is aborted, because half of an answer may have been sent.
func withPanicRecovery(next http.Handler, resolver apirequest.RequestInfoResolver) http.Handler {
	next = fault.Handler("control/request", next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				info, _ := resolver.NewRequestInfo(r) // nil is counted too
				metrics.RecordRequestAbort(r, info)
				panic(p)
			}
		}()
		next.ServeHTTP(w, r)
	})
}
