package limits_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/balsahq/balsa/control/limits"
)

// BenchmarkASeat is what fairness costs a request that need not wait.
func BenchmarkASeat(b *testing.B) {
	c, err := limits.New(limits.Config{
		Client: kubernetes.NewForConfigOrDie(&restclient.Config{Host: "http://nowhere.invalid"}), Seats: 600, Patience: time.Second,
		Count: func(string) (storage.Stats, error) { return storage.Stats{}, nil },
	})
	if err != nil {
		b.Fatal(err)
	}
	h := c.Fair(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), func(*http.Request, *apirequest.RequestInfo) bool { return false })
	r := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/default/pods/p", nil)
	ctx := apirequest.WithRequestInfo(r.Context(), &apirequest.RequestInfo{IsResourceRequest: true, Verb: "get", APIVersion: "v1", Resource: "pods", Namespace: "default", Name: "p"})
	r = r.WithContext(apirequest.WithUser(ctx, &user.DefaultInfo{Name: "jane", Groups: []string{user.AllAuthenticated}}))
	b.ReportAllocs()
	for b.Loop() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			b.Fatal(w.Code)
		}
	}
}
