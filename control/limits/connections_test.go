package limits

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
)

// TestPodsOfAServiceAccountAreTenantsOfTheirOwn: and a client that proved nothing is none.
func TestPodsOfAServiceAccountAreTenantsOfTheirOwn(t *testing.T) {
	pod := func(uid string) user.Info {
		return &user.DefaultInfo{Name: "system:serviceaccount:a:b", Extra: map[string][]string{serviceaccount.PodUIDKey: {uid}}}
	}
	for _, c := range []struct {
		who    user.Info
		tenant string // "": nobody is told
	}{
		{&user.DefaultInfo{Name: "jane"}, "jane"}, {pod("1"), "system:serviceaccount:a:b/1"}, {pod("2"), "system:serviceaccount:a:b/2"},
		{&user.DefaultInfo{Name: user.Anonymous}, ""}, {nil, ""},
	} {
		told, served := "", false
		h := Connections(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true }),
			func(_ context.Context, tenant string) error { told = tenant; return nil }, scheme.Codecs)
		r := httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil)
		if c.who != nil {
			r = r.WithContext(apirequest.WithUser(r.Context(), c.who))
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
		if told != c.tenant || !served {
			t.Errorf("%v: told of %q, served %v", c.who, told, served)
		}
	}
}

func TestATenantWithTooManyConnectionsIsToldSo(t *testing.T) {
	h := Connections(http.NotFoundHandler(), func(context.Context, string) error { return errors.New("too many connections") }, scheme.Codecs)
	r := httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r.WithContext(apirequest.WithUser(r.Context(), &user.DefaultInfo{Name: "jane"})))
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Connection") != "close" || w.Header().Get("Retry-After") == "" ||
		!strings.Contains(w.Body.String(), "too many connections") {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}
