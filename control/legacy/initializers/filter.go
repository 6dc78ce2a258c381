package initializers

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// parameter is what a request asks with for objects that are not initialized.
const parameter = "includeUninitialized"

// cleaners are the users who remove what is left of others, or count what there is: they see all.
var cleaners = []string{
	"system:serviceaccount:kube-system:namespace-controller",
	"system:serviceaccount:kube-system:resourcequota-controller",
	"system:serviceaccount:kube-system:generic-garbage-collector",
}

type key struct{}

// include makes a context of one that sees all objects.
func include(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, true) }

// included reports whether a context sees objects that are not initialized.
func included(ctx context.Context) bool { return ctx.Value(key{}) != nil }

// Current reads the state of the object that a request names; nil when it waits for nothing, or is not there.
type Current func(r *http.Request) *State

// Filter says of each request whether it sees objects that are not initialized: it asks for them with
// ?includeUninitialized=true, deletes a collection, which means all of it, or is of those who clean up. In JSON it takes
// and shows the state as metadata.initializers too, as programs of Kubernetes v1.9 have it. It belongs behind
// authentication.
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
			r = take(r, current)
		}
		shown, r, done := show(w, r, info)
		next.ServeHTTP(shown, r)
		done()
	})
}

// asks reads the parameter as Kubernetes reads booleans: it is true unless it says otherwise.
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
