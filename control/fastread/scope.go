package fastread

import (
	"context"
	"net/url"
	"slices"
	"strings"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metainternalversionvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// scope says which objects a read returns. Namespace, name and selectors are those that were authorized.
type scope struct {
	namespace string // "" for all, and for kinds without namespaces
	name      string // "" for all objects
	options   metainternalversion.ListOptions
}

// parameters are the query parameters that this package understands, by verb.
var parameters = map[string][]string{
	"get":  {"resourceVersion"},
	"list": {"resourceVersion", "resourceVersionMatch", "limit", "continue", "labelSelector"},
	"watch": {"watch", "resourceVersion", "resourceVersionMatch", "labelSelector", "fieldSelector", "allowWatchBookmarks",
		"sendInitialEvents", "timeoutSeconds"},
}

// maxTimeoutSeconds bounds a watch's timeoutSeconds. In k8s.io/apiserver a larger value overflows a time.Duration.
const maxTimeoutSeconds = 1 << 31

// scopeOf returns the scope of an authorized request. It is the only function that reads the path and the query. Both
// have to agree with info, which was authorized: ok is false if they do not, or if k8s.io/apiserver would answer with
// an error or with something that this package does not know. k8s.io/apiserver then answers the request.
func scopeOf(info *request.RequestInfo, namespaced bool, rawQuery string) (s scope, ok bool) {
	query, err := url.ParseQuery(rawQuery)
	if err != nil || info.Path != pathOf(info, namespaced) {
		return s, false
	}
	for name, values := range query {
		if len(values) != 1 || !slices.Contains(parameters[info.Verb], name) {
			return s, false
		}
	}
	if query.Get("labelSelector") != info.LabelSelector || query.Get("fieldSelector") != info.FieldSelector {
		return s, false // these selectors were not authorized
	}
	if namespaced {
		s.namespace = info.Namespace
	}
	s.name = info.Name
	if info.Verb == "get" {
		s.options.ResourceVersion = query.Get("resourceVersion")
		return s, true
	}
	in, watchList := &s.options, utilfeature.DefaultFeatureGate.Enabled(features.WatchList)
	if metainternalversionscheme.ParameterCodec.DecodeParameters(query, metav1.SchemeGroupVersion, in) != nil {
		return s, false
	}
	metainternalversion.SetListOptionsDefaults(in, watchList)
	switch {
	case in.Watch != (info.Verb == "watch"), len(metainternalversionvalidation.ValidateListOptions(in, watchList)) > 0:
		return s, false
	case in.Limit < 0, in.TimeoutSeconds != nil && (*in.TimeoutSeconds < 0 || *in.TimeoutSeconds > maxTimeoutSeconds):
		return s, false
	}
	return s, selectsName(in.FieldSelector, info.Name)
}

// pathOf returns the path by which k8s.io/apiserver routes a request to the handler of info's resource and verb.
// RequestInfo accepts other paths too, and they are authorized differently: a cluster-scoped kind below a namespace by
// the roles of that namespace, a path with the /watch/ prefix by the name after it, and paths with empty segments.
func pathOf(info *request.RequestInfo, namespaced bool) string {
	var b strings.Builder
	b.Grow(len(info.Path))
	for _, part := range []struct{ before, segment string }{{"/", info.APIPrefix}, {"/", info.APIGroup}, {"/", info.APIVersion}} {
		if part.segment != "" {
			b.WriteString(part.before + part.segment)
		}
	}
	if namespaced && info.Namespace != "" {
		b.WriteString("/namespaces/" + info.Namespace)
	}
	b.WriteString("/" + info.Resource)
	if info.Verb == "get" {
		b.WriteString("/" + info.Name)
	}
	return b.String()
}

// selectsName reports whether selector selects exactly the object called name, or everything if name is "".
func selectsName(selector fields.Selector, name string) bool {
	if selector == nil || selector.Empty() {
		return name == ""
	}
	selected, ok := selector.RequiresExactMatch("metadata.name")
	return ok && name != "" && selected == name && len(selector.Requirements()) == 1
}

// key returns the store's key of the scope's object, or the prefix of all its objects.
func (s *scope) key(ctx context.Context, store *genericregistry.Store) (string, error) {
	ctx = request.WithNamespace(ctx, s.namespace)
	if s.name == "" {
		return store.KeyRootFunc(ctx), nil
	}
	return store.KeyFunc(ctx, s.name)
}

// stored returns the options for the storage.
func (s *scope) stored() storage.ListOptions {
	in, selector := &s.options, labels.Everything()
	if in.LabelSelector != nil {
		selector = in.LabelSelector
	}
	out := storage.ListOptions{
		ResourceVersion: in.ResourceVersion, SendInitialEvents: in.SendInitialEvents, Recursive: s.name == "",
		Predicate: storage.SelectionPredicate{Label: selector, Field: fields.Everything(), GetAttrs: storage.DefaultClusterScopedAttr,
			Limit: in.Limit, Continue: in.Continue, AllowWatchBookmarks: in.AllowWatchBookmarks},
	}
	if !in.Watch {
		out.ResourceVersionMatch = in.ResourceVersionMatch
	}
	return out
}
