package control

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"

	"github.com/emicklei/go-restful/v3"
)

// TestRoutesAreFoundAsCurlyRouterFindsThem: for every route there is, for paths beside them, and whatever a client says
// about media types.
func TestRoutesAreFoundAsCurlyRouterFindsThem(t *testing.T) {
	s := unserved(t)
	services := s.generic.Handler.GoRestfulContainer.RegisteredWebServices()
	ours, curly := &router{}, restful.CurlyRouter{}
	parameter := regexp.MustCompile(`\{[^}]*\}`)
	asked, quick := 0, 0
	ask := func(method, path, accept, content string) {
		r := httptest.NewRequest(method, path, nil)
		if accept != "" {
			r.Header.Set("Accept", accept)
		}
		if content != "" {
			r.Header.Set("Content-Type", content)
		}
		asked++
		if _, found := ours.find(services, r); found != nil {
			quick++
		}
		gotService, got, gotErr := ours.SelectRoute(services, r)
		wantService, want, wantErr := curly.SelectRoute(services, r)
		if gotService != wantService || (got == nil) != (want == nil) || (gotErr == nil) != (wantErr == nil) ||
			got != nil && (got.Path != want.Path || got.Method != want.Method || got.Operation != want.Operation) {
			t.Errorf("%s %s (%s, %s): %v %v, want %v %v", method, path, accept, content, got, gotErr, want, wantErr)
		}
	}
	seen := map[string]bool{}
	for _, service := range services {
		for _, route := range service.Routes() {
			path := parameter.ReplaceAllString(route.Path, "some")
			if seen[path] {
				continue
			}
			seen[path] = true
			for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions} {
				ask(method, path, "application/json", "application/json")
			}
			ask(http.MethodGet, path+"/", "", "")
			ask(http.MethodGet, path+"/deeper/still", "*/*", "")
			ask(http.MethodGet, path, "text/nonsense", "")
			ask(http.MethodGet, path, "application/vnd.kubernetes.protobuf,application/json", "")
			ask(http.MethodPatch, path, "application/json", "application/apply-patch+yaml")
			ask(http.MethodPatch, path, "application/json", "text/nonsense")
			ask(http.MethodPost, path, "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf; x=y")
		}
	}
	if asked < 1000 || quick < asked/10 {
		t.Errorf("of %d requests only %d were found at once", asked, quick)
	}
}
