package direct

import (
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// protobufs and jsons are the Accept headers that are understood: those client-go
// and kubectl send for objects, and none.
var (
	protobufs = map[string]bool{
		runtime.ContentTypeProtobuf:                                  true,
		runtime.ContentTypeProtobuf + ",application/json":            true,
		runtime.ContentTypeProtobuf + ", application/json":           true,
		"application/vnd.kubernetes.protobuf,application/json,*/*":   true,
		"application/vnd.kubernetes.protobuf, application/json, */*": true,
	}
	jsons = map[string]bool{"": true, "*/*": true, runtime.ContentTypeJSON: true, "application/json, */*": true, "application/json,*/*": true}
)

// encodingOf says what the client takes; ok is false when it may want something
// else.
func encodingOf(r *http.Request) (protobuf, ok bool) {
	accept := r.Header["Accept"]
	if len(accept) > 1 {
		return false, false
	}
	text := strings.Join(accept, "")
	if protobufs[text] {
		return true, true
	}
	if !jsons[text] {
		return false, false
	}
	// As upstream has it, these get indented JSON.
	for _, human := range []string{"curl", "Wget", "Mozilla/5.0"} {
		if strings.HasPrefix(r.UserAgent(), human) {
			return false, false
		}
	}
	return false, true
}

// listOptions reads the parameters of a list; ok is false when there is one that
// is wrong, or not known here.
func listOptions(r *http.Request) (opts storage.ListOptions, ok bool) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return opts, false
	}
	in := metainternalversion.ListOptions{}
	selector := labels.Everything()
	for name, values := range q {
		if len(values) != 1 {
			return opts, false
		}
		v := values[0]
		switch name {
		case "resourceVersion":
			in.ResourceVersion = v
		case "resourceVersionMatch":
			in.ResourceVersionMatch = metav1.ResourceVersionMatch(v)
		case "continue":
			in.Continue = v
		case "limit":
			if in.Limit, err = strconv.ParseInt(v, 10, 64); err != nil || in.Limit < 0 {
				return opts, false
			}
		case "labelSelector":
			if selector, err = labels.Parse(v); err != nil {
				return opts, false
			}
		default:
			return opts, false
		}
	}
	if len(metainternalversionvalidation.ValidateListOptions(&in, false)) > 0 {
		return opts, false
	}
	return storage.ListOptions{
		ResourceVersion: in.ResourceVersion, ResourceVersionMatch: in.ResourceVersionMatch, Recursive: true,
		Predicate: storage.SelectionPredicate{Label: selector, Field: fields.Everything(), GetAttrs: storage.DefaultClusterScopedAttr,
			Limit: in.Limit, Continue: in.Continue},
	}, true
}

// leastWatch is how long a watch lasts that does not say: this long, up to twice
// (kube-apiserver's --min-request-timeout).
const leastWatch = 30 * time.Minute

// watchQuery is what a watch asks for.
type watchQuery struct {
	asked   metainternalversion.ListOptions
	options storage.ListOptions
	name    string // of the one object that is watched; "" for all
	lasts   time.Duration
}

// watchOptions reads the parameters of a watch; ok is false when there is one that
// is wrong, or not known here.
func watchOptions(r *http.Request) (q watchQuery, ok bool) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil || r.Header.Get("Upgrade") != "" {
		return q, false
	}
	in := &q.asked
	selector := labels.Everything()
	for name, all := range values {
		if len(all) != 1 {
			return q, false
		}
		v, valid := all[0], true
		switch name {
		case "watch":
			in.Watch, valid = boolean(v)
		case "allowWatchBookmarks":
			in.AllowWatchBookmarks, valid = boolean(v)
		case "sendInitialEvents":
			var send bool
			send, valid = boolean(v)
			in.SendInitialEvents = &send
		case "resourceVersion":
			in.ResourceVersion = v
		case "resourceVersionMatch":
			in.ResourceVersionMatch = metav1.ResourceVersionMatch(v)
		case "timeoutSeconds":
			var seconds int64
			seconds, err = strconv.ParseInt(v, 10, 32)
			in.TimeoutSeconds, valid = &seconds, err == nil && seconds >= 0
		case "labelSelector":
			selector, err = labels.Parse(v)
			valid = err == nil
		case "fieldSelector":
			q.name, valid = named(v)
		default:
			valid = false
		}
		if !valid {
			return q, false
		}
	}
	watchList := utilfeature.DefaultFeatureGate.Enabled(features.WatchList)
	metainternalversion.SetListOptionsDefaults(in, watchList)
	if !in.Watch || len(metainternalversionvalidation.ValidateListOptions(in, watchList)) > 0 {
		return q, false
	}
	q.lasts = time.Duration(float64(leastWatch) * (rand.Float64() + 1))
	if in.TimeoutSeconds != nil && *in.TimeoutSeconds > 0 {
		q.lasts = time.Duration(*in.TimeoutSeconds) * time.Second
	}
	q.options = storage.ListOptions{
		ResourceVersion: in.ResourceVersion, SendInitialEvents: in.SendInitialEvents, Recursive: q.name == "",
		Predicate: storage.SelectionPredicate{Label: selector, Field: fields.Everything(), GetAttrs: storage.DefaultClusterScopedAttr,
			AllowWatchBookmarks: in.AllowWatchBookmarks},
	}
	return q, true
}

// boolean reads the usual forms.
func boolean(v string) (is, ok bool) {
	return v == "true" || v == "1", v == "true" || v == "1" || v == "false" || v == "0"
}

// named reads a field selector that selects one name.
func named(v string) (name string, ok bool) {
	selector, err := fields.ParseSelector(v)
	if err != nil || len(selector.Requirements()) != 1 {
		return "", false
	}
	name, ok = selector.RequiresExactMatch("metadata.name")
	return name, ok && name != ""
}

// getOptions reads the one parameter a GET of an object has.
func getOptions(r *http.Request) (resourceVersion string, ok bool) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return "", false
	}
	for name, values := range q {
		if name != "resourceVersion" || len(values) != 1 {
			return "", false
		}
		resourceVersion = values[0]
	}
	return resourceVersion, true
}
