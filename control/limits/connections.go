package limits

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// Connections tells prove whom each request has proved to be, so that its connection counts as that tenant's; where that
// tenant may have no more of them, the request is refused with 429 and the connection ends. It stands behind
// authentication, before impersonation. A client that proved nothing is not told of.
func Connections(next http.Handler, prove func(ctx context.Context, tenant string) error, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, ok := apirequest.UserFrom(r.Context())
		if !ok || u.GetName() == user.Anonymous {
			next.ServeHTTP(w, r)
			return
		}
		if err := prove(r.Context(), tenant(u)); err != nil {
			w.Header().Set("Connection", "close") // of HTTP/2 too: net/http says goodbye on it
			refuse(w, r, s, apierrors.NewTooManyRequests(err.Error(), retryWatch))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// tenant is who is counted as one: a user, and of a service account each pod, as far as its token says which one it is for.
func tenant(u user.Info) string {
	if pods := u.GetExtra()[serviceaccount.PodUIDKey]; len(pods) == 1 {
		return u.GetName() + "/" + pods[0]
	}
	return u.GetName()
}
