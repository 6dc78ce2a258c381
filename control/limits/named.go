package limits

import (
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// Named refuses requests for namespaces whose name is invalid in a path, such as "..", with 400. Code that builds paths or
// client requests from them would otherwise report an internal error.
func Named(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := apirequest.RequestInfoFrom(r.Context()); ok && info.Namespace != "" {
			if faults := path.IsValidPathSegmentName(info.Namespace); len(faults) > 0 {
				refuse(w, r, s, apierrors.NewBadRequest(fmt.Sprintf("namespace %.100q: %s", info.Namespace, strings.Join(faults, ", "))))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
