package ingress_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// api is as much of a Kubernetes API as the package uses: lists, watches, metadata alone, writes of objects and statuses.
type api struct {
	t      testing.TB
	config *rest.Config
	client kubernetes.Interface

	mu      sync.Mutex
	rv      int64
	objects map[string]map[string]*unstructured.Unstructured // by group/version/resource, then namespace/name
	log     []logged
	more    chan struct{} // closed when the log grows
	asked   []string      // requests for Secrets and for kinds that are not there
	writes  int           // of statuses
	events  []string
}

type logged struct {
	rv       int64
	resource string
	kind     string
	object   *unstructured.Unstructured
}

func newAPI(t testing.TB) *api {
	a := &api{t: t, objects: map[string]map[string]*unstructured.Unstructured{}, more: make(chan struct{})}
	for _, r := range []string{
		"/v1/services", "/v1/secrets", "/v1/nodes", "/v1/namespaces", "/v1/events", "discovery.k8s.io/v1/endpointslices",
		"networking.k8s.io/v1/ingresses", "networking.k8s.io/v1/ingressclasses", "apiextensions.k8s.io/v1/customresourcedefinitions",
	} {
		a.objects[r] = map[string]*unstructured.Unstructured{}
	}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	a.config = &rest.Config{Host: server.URL, QPS: -1}
	a.config.ContentType = "application/json"
	client, err := kubernetes.NewForConfig(a.config)
	if err != nil {
		t.Fatal(err)
	}
	a.client = client
	return a
}

// define makes a kind of the Gateway API known, definition and all.
func (a *api) define(resource string) {
	a.mu.Lock()
	a.objects["gateway.networking.k8s.io/v1/"+resource] = map[string]*unstructured.Unstructured{}
	a.mu.Unlock()
	a.putObject("apiextensions.k8s.io/v1/customresourcedefinitions", map[string]any{"metadata": map[string]any{"name": resource + ".gateway.networking.k8s.io"}})
}

func keyOf(u *unstructured.Unstructured) string { return u.GetNamespace() + "/" + u.GetName() }

// put writes an object, of any form that JSON knows.
func (a *api) putObject(resource string, object any) {
	a.t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		a.t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &u.Object); err != nil {
		a.t.Fatal(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.objects[resource][keyOf(u)]
	if before == nil {
		u.SetUID(typesUID(keyOf(u)))
		u.SetGeneration(1)
	} else {
		u.SetUID(before.GetUID())
		u.SetGeneration(before.GetGeneration())
		if !reflect.DeepEqual(u.Object["spec"], before.Object["spec"]) {
			u.SetGeneration(before.GetGeneration() + 1)
		}
		if _, has := u.Object["status"]; !has && before.Object["status"] != nil {
			u.Object["status"] = before.Object["status"]
		}
	}
	a.store(resource, u, before == nil)
}

// store is for holders of the lock.
func (a *api) store(resource string, u *unstructured.Unstructured, added bool) {
	a.rv++
	u.SetResourceVersion(strconv.FormatInt(a.rv, 10))
	a.objects[resource][keyOf(u)] = u
	kind := "MODIFIED"
	if added {
		kind = "ADDED"
	}
	a.note(logged{a.rv, resource, kind, u.DeepCopy()})
}

func (a *api) note(l logged) {
	a.log = append(a.log, l)
	close(a.more)
	a.more = make(chan struct{})
}

func (a *api) remove(resource, key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.objects[resource][key].DeepCopy() // somebody may be reading it
	delete(a.objects[resource], key)
	a.rv++
	u.SetResourceVersion(strconv.FormatInt(a.rv, 10))
	a.note(logged{a.rv, resource, "DELETED", u})
}

// get reads an object into a typed one; false: there is none.
func (a *api) get(resource, key string, into any) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.objects[resource][key]
	return u != nil && runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, into) == nil
}

// ServeHTTP implements http.Handler.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	group, version, rest := "", parts[1], parts[2:]
	if parts[0] == "apis" {
		group, version, rest = parts[1], parts[2], parts[3:]
	}
	namespace := ""
	if len(rest) > 2 && rest[0] == "namespaces" {
		namespace, rest = rest[1], rest[2:]
	}
	resource := group + "/" + version + "/" + rest[0]
	a.mu.Lock()
	_, known := a.objects[resource]
	if rest[0] == "secrets" || !known {
		a.asked = append(a.asked, r.URL.Path+"?"+r.URL.Query().Get("fieldSelector"))
	}
	a.mu.Unlock()
	switch {
	case !known:
		fail(w, http.StatusNotFound, "NotFound")
	case r.Method == http.MethodPost:
		a.create(w, r, resource)
	case r.Method == http.MethodPut && len(rest) == 3 && rest[2] == "status":
		a.setStatus(w, r, resource)
	case r.Method != http.MethodGet:
		fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
	case len(rest) > 1:
		a.one(w, resource, namespace+"/"+rest[1])
	case r.URL.Query().Get("sendInitialEvents") != "":
		fail(w, http.StatusUnprocessableEntity, "Invalid") // an older server: clients list and then watch
	case r.URL.Query().Get("watch") != "":
		a.watch(w, r, resource, namespace)
	default:
		a.list(w, r, resource, namespace)
	}
}

func fail(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
}

func write(w http.ResponseWriter, o any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(o)
}

func (a *api) one(w http.ResponseWriter, resource, key string) {
	a.mu.Lock()
	u := a.objects[resource][key]
	a.mu.Unlock()
	if u == nil {
		fail(w, http.StatusNotFound, "NotFound")
		return
	}
	write(w, shown(u, resource, false).Object)
}

// kinds are the names of what a resource is a list of.
var kinds = map[string]string{
	"services": "Service", "secrets": "Secret", "nodes": "Node", "namespaces": "Namespace", "endpointslices": "EndpointSlice", "ingresses": "Ingress",
	"ingressclasses": "IngressClass", "gatewayclasses": "GatewayClass", "gateways": "Gateway", "httproutes": "HTTPRoute", "grpcroutes": "GRPCRoute",
	"referencegrants": "ReferenceGrant", "customresourcedefinitions": "CustomResourceDefinition", "events": "Event",
}

func shown(u *unstructured.Unstructured, resource string, metaOnly bool) *unstructured.Unstructured {
	i := strings.LastIndexByte(resource, '/')
	out := u.DeepCopy()
	out.SetAPIVersion(strings.TrimPrefix(resource[:i], "/"))
	out.SetKind(kinds[resource[i+1:]])
	if metaOnly {
		out.Object = map[string]any{"metadata": out.Object["metadata"], "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata"}
	}
	return out
}

func chosen(u *unstructured.Unstructured, r *http.Request, namespace string) bool {
	name, byName := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	return (namespace == "" || u.GetNamespace() == namespace) && (!byName || u.GetName() == name)
}

func metaOnly(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
}

func (a *api) list(w http.ResponseWriter, r *http.Request, resource, namespace string) {
	a.mu.Lock()
	items := []any{}
	for _, u := range a.objects[resource] {
		if chosen(u, r, namespace) {
			items = append(items, shown(u, resource, metaOnly(r)).Object)
		}
	}
	rv := a.rv
	a.mu.Unlock()
	i := strings.LastIndexByte(resource, '/')
	out := map[string]any{
		"apiVersion": strings.TrimPrefix(resource[:i], "/"), "kind": kinds[resource[i+1:]] + "List",
		"metadata": map[string]any{"resourceVersion": strconv.FormatInt(rv, 10)}, "items": items,
	}
	if metaOnly(r) {
		out["apiVersion"], out["kind"] = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	write(w, out)
}

func (a *api) watch(w http.ResponseWriter, r *http.Request, resource, namespace string) {
	from, _ := strconv.ParseInt(r.URL.Query().Get("resourceVersion"), 10, 64)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	w.(http.Flusher).Flush()
	enc, next := json.NewEncoder(w), 0
	for {
		a.mu.Lock()
		news, more := a.log[next:], a.more
		next = len(a.log)
		a.mu.Unlock()
		for _, l := range news {
			if l.rv > from && l.resource == resource && chosen(l.object, r, namespace) {
				if enc.Encode(map[string]any{"type": l.kind, "object": shown(l.object, resource, metaOnly(r)).Object}) != nil {
					return
				}
			}
		}
		w.(http.Flusher).Flush()
		select {
		case <-more:
		case <-r.Context().Done():
			return
		}
	}
}

func (a *api) create(w http.ResponseWriter, r *http.Request, resource string) {
	text, _ := io.ReadAll(r.Body)
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &u.Object); err != nil {
		fail(w, http.StatusBadRequest, "BadRequest")
		return
	}
	a.mu.Lock()
	if strings.HasSuffix(resource, "/events") {
		reason, _, _ := unstructured.NestedString(u.Object, "reason")
		message, _, _ := unstructured.NestedString(u.Object, "message")
		name, _, _ := unstructured.NestedString(u.Object, "involvedObject", "name")
		a.events = append(a.events, reason+" "+name+": "+message)
	} else {
		a.store(resource, u, true)
	}
	a.mu.Unlock()
	write(w, u.Object)
}

func (a *api) setStatus(w http.ResponseWriter, r *http.Request, resource string) {
	text, _ := io.ReadAll(r.Body)
	given := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &given.Object); err != nil {
		fail(w, http.StatusBadRequest, "BadRequest")
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.objects[resource][keyOf(given)]
	switch {
	case before == nil:
		fail(w, http.StatusNotFound, "NotFound")
		return
	case before.GetResourceVersion() != given.GetResourceVersion():
		fail(w, http.StatusConflict, "Conflict")
		return
	}
	a.writes++
	next := before.DeepCopy()
	next.Object["status"] = given.Object["status"]
	a.store(resource, next, false)
	write(w, shown(next, resource, false).Object)
}

// look runs fn under the lock.
func (a *api) look(fn func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fn()
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		select {
		case <-t.Context().Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

type unstructuredObject = unstructured.Unstructured
