package direct

import (
	"net/http"
	"net/url"
	"testing"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What is understood here of a query, upstream understands alike.
func FuzzQuery(f *testing.F) {
	for _, q := range []string{"", "limit=5&continue=x", "labelSelector=a%3Db,c&resourceVersion=7", "resourceVersion=0&resourceVersionMatch=NotOlderThan", "limit=-1", "limit=1&limit=2",
		"watch=0", "labelSelector=", "limit=", "a;b", "%zz", "resourceVersion=x", "limit=0x1", "limit=1_0", "limit=%2B1", "labelSelector=a+in+(b)"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, query string) {
		r := &http.Request{URL: &url.URL{RawQuery: query}}
		_, _ = getOptions(r)
		opts, ok := listOptions(r)
		if !ok {
			return
		}
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatalf("%q is no query and was taken: %v", query, err)
		}
		var theirs metainternalversion.ListOptions
		if err := metainternalversionscheme.ParameterCodec.DecodeParameters(values, metav1.SchemeGroupVersion, &theirs); err != nil {
			t.Fatalf("%q: upstream says %v", query, err)
		}
		label := ""
		if theirs.LabelSelector != nil {
			label = theirs.LabelSelector.String()
		}
		if opts.ResourceVersion != theirs.ResourceVersion || opts.ResourceVersionMatch != theirs.ResourceVersionMatch || opts.Predicate.Limit != theirs.Limit ||
			opts.Predicate.Continue != theirs.Continue || opts.Predicate.Label.String() != label {
			t.Fatalf("%q: %+v, upstream %+v", query, opts, theirs)
		}
	})
}
