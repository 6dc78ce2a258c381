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

// Connections calls prove with the authenticated tenant of each request, so that the connection counts as that tenant's. When
// the tenant may have no more connections, the request is refused with 429 and the connection ends. The filter belongs after
// authentication and before impersonation. prove is not called for anonymous clients.
func Connections(next http.Handler, prove func(ctx context.Context, tenant string) error, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, ok := apirequest.UserFrom(r.Context())
		if !ok || u.GetName() == user.Anonymous {
			next.ServeHTTP(w, r)
			return
		}
		if err := prove(r.Context(), tenant(u)); err != nil {
			w.Header().Set("Connection", "close") // with HTTP/2, net/http sends GOAWAY for it
			refuse(w, r, s, apierrors.NewTooManyRequests(err.Error(), retryWatch))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// tenant returns the name under which a user is counted: the user, or the pod for a service account's token that names its pod.
func tenant(u user.Info) string {
	if pods := u.GetExtra()[serviceaccount.PodUIDKey]; len(pods) == 1 {
		return u.GetName() + "/" + pods[0]
	}
	return u.GetName()
}
