package control

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
)

func TestLongRunningIsWhatUpstreamSays(t *testing.T) {
	upstream := genericfilters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward"))
	for _, verb := range []string{"", "get", "list", "watch", "proxy", "create", "connect"} {
		for _, sub := range []string{"", "status", "attach", "exec", "proxy", "log", "portforward", "watch"} {
			for _, path := range []string{"/api/v1/pods", "/debug/pprof/profile", "/debug/pprof", "/healthz"} {
				for _, resource := range []bool{true, false} {
					info := &apirequest.RequestInfo{IsResourceRequest: resource, Verb: verb, Subresource: sub, Path: path}
					if have, want := longRunning(nil, info), upstream(nil, info); have != want {
						t.Errorf("%+v: %v, upstream says %v", info, have, want)
					}
				}
			}
		}
	}
}
