package overlay

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// The informers list, in large pages, and watch from there; what they hold is without managed fields.
func TestInformersListAndHoldWhatReadersNeed(t *testing.T) {
	var mu sync.Mutex
	var asked []url.Values
	list := v1.ServiceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	list.Items = []v1.Service{{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "web", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "somebody"}},
	}}}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.Query())
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Has("sendInitialEvents") {
			http.Error(w, "what there is, by a watch", http.StatusBadRequest)
			return
		}
		if r.URL.Query().Get("watch") != "" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		_ = json.NewEncoder(w).Encode(list)
	}))
	defer api.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	factory := NewInformers(client)
	services := factory.Core().V1().Services()
	services.Informer()
	stop := make(chan struct{})
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	held, _ := services.Lister().List(labels.Everything())
	if len(held) != 1 || held[0].Name != "web" || held[0].ManagedFields != nil {
		t.Errorf("held: %+v", held)
	}
	close(stop)
	api.CloseClientConnections()
	factory.Shutdown()
	mu.Lock()
	defer mu.Unlock()
	if first := asked[0]; first.Get("watch") != "" || first.Get("limit") != "2000" {
		t.Errorf("asked first: %v", first)
	}
	for _, q := range asked {
		if q.Has("sendInitialEvents") {
			t.Errorf("asked for what there is by a watch: %v", q)
		}
	}
}
