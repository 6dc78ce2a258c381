package openapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/common"
)

func documents(t *testing.T, built *int) *Documents {
	t.Helper()
	ws := new(restful.WebService)
	ws.Path("/apis/example.com/v1").Produces("application/json")
	ws.Route(ws.GET("/things").Operation("list things").Doc("list things").To(func(*restful.Request, *restful.Response) {}))
	d, err := New(Config{
		Title: "Test", Version: "v1", Schemes: []*runtime.Scheme{runtime.NewScheme()}, Idle: time.Minute,
		Definitions: func(common.ReferenceCallback) map[string]common.OpenAPIDefinition {
			*built++
			return map[string]common.OpenAPIDefinition{}
		},
		WebServices: func() []*restful.WebService { return []*restful.WebService{ws} },
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func get(h http.HandlerFunc, url, accept string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, url, nil)
	r.Header.Set("Accept", accept)
	h(w, r)
	return w
}

func TestNothingIsBuiltBeforeItIsAskedForNorHeldForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var built int
		d := documents(t, &built)
		if w := get(d.ServeV3, "/openapi/v3", ""); w.Code != 200 || built != 0 {
			t.Errorf("the index: %d, built %d times", w.Code, built)
		}
		for range 3 {
			if w := get(d.ServeV3, "/openapi/v3/apis/example.com/v1", ""); w.Code != 200 || !strings.Contains(w.Body.String(), "list things") {
				t.Fatal(w.Code, w.Body)
			}
		}
		if built != 1 || !holdsDocuments(d) {
			t.Errorf("built %d times", built)
		}
		time.Sleep(59 * time.Second)
		get(d.ServeV3, "/openapi/v3/apis/example.com/v1", "")
		time.Sleep(59 * time.Second)
		if !holdsDocuments(d) {
			t.Error("dropped while it is used")
		}
		time.Sleep(2 * time.Second)
		if holdsDocuments(d) {
			t.Error("still held when idle")
		}
	})
}

func TestIndexLeadsToImmutableDocuments(t *testing.T) {
	var built int
	d := documents(t, &built)
	var index Index
	if err := json.Unmarshal(get(d.ServeV3, "/openapi/v3", "").Body.Bytes(), &index); err != nil {
		t.Fatal(err)
	}
	url := index.Paths["apis/example.com/v1"].ServerRelativeURL
	w := get(d.ServeV3, url, "application/json")
	if w.Code != 200 || w.Header().Get("Cache-Control") != "public, immutable" || w.Header().Get("Etag") == "" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	if w = get(d.ServeV3, "/openapi/v3/apis/example.com/v1?hash=OLD", ""); w.Code != 301 || w.Header().Get("Location") != url {
		t.Errorf("old hash: %d %v", w.Code, w.Header())
	}
	if w = get(d.ServeV3, url, "text/html"); w.Code != 406 {
		t.Errorf("text/html: %d", w.Code)
	}
	if w = get(d.ServeV3, "/openapi/v3/apis/other/v1", ""); w.Code != 404 {
		t.Errorf("no such group: %d", w.Code)
	}
	if w = get(d.ServeV2, "/openapi/v2", "application/json"); w.Code != 200 || !strings.Contains(w.Body.String(), "list things") {
		t.Errorf("v2: %d %s", w.Code, w.Body)
	}
	d.Drop()
}

func TestTypesAreMadeOnce(t *testing.T) {
	var built, asked int
	d := documents(t, &built)
	types := d.Types(func() ([]string, error) { asked++; return nil, nil })
	for range 2 {
		if _, err := types.converter(); err != nil {
			t.Fatal(err)
		}
	}
	if asked != 1 {
		t.Errorf("names were asked for %d times", asked)
	}
	var _ managedfields.TypeConverter = types
	d.Drop()
}

func TestConfigNamesWhatIsMissing(t *testing.T) {
	_, err := New(Config{})
	for _, want := range []string{"Definitions", "WebServices", "Schemes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

func holdsDocuments(d *Documents) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.v2 != nil || d.v3 != nil
}
