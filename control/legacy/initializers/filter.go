package initializers

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// parameter is the query parameter by which a request asks for objects that are not initialized.
const parameter = "includeUninitialized"

// cleaners are the users that delete objects of other clients, or count objects: they see all objects.
var cleaners = []string{
	"system:serviceaccount:kube-system:namespace-controller",
	"system:serviceaccount:kube-system:resourcequota-controller",
	"system:serviceaccount:kube-system:generic-garbage-collector",
}

type key struct{}

// include returns a context that sees all objects.
func include(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, true) }

// included reports whether a context sees objects that are not initialized.
func included(ctx context.Context) bool { return ctx.Value(key{}) != nil }

// Current returns the state of the object that a request names; nil if it does not wait, or does not exist.
type Current func(r *http.Request) *State

// Filter decides for each request whether it sees objects that are not initialized. It does if it has
// ?includeUninitialized=true, if it deletes a collection, or if it comes from one of the cleaners. In JSON, such a
// request may also read and write the state as metadata.initializers, as programs for Kubernetes v1.9 do. Filter has to
// run after authentication.
func Filter(current Current, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if asks(r) || deletes(ctx) || cleans(ctx) {
			r = r.WithContext(include(ctx))
		}
		info, ok := request.RequestInfoFrom(ctx)
		if !ok || !info.IsResourceRequest || Exempt(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}) {
			next.ServeHTTP(w, r)
			return
		}
		if r.Body != nil && info.Subresource == "" {
			r = rewriteRequest(r, current)
		}
		shown, r, done := rewriteResponse(w, r, info)
		next.ServeHTTP(shown, r)
		done()
	})
}

// asks parses the parameter as Kubernetes parses booleans: every value except "false" and "0" is true.
func asks(r *http.Request) bool {
	if !strings.Contains(r.URL.RawQuery, parameter) {
		return false
	}
	values, ok := r.URL.Query()[parameter]
	return ok && len(values) > 0 && values[0] != "0" && !strings.EqualFold(values[0], "false")
}

func deletes(ctx context.Context) bool {
	info, ok := request.RequestInfoFrom(ctx)
	return ok && info.Verb == "deletecollection"
}

func cleans(ctx context.Context) bool {
	u, ok := request.UserFrom(ctx)
	return ok && slices.Contains(cleaners, u.GetName())
}
