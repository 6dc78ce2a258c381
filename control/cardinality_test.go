package control_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/control/controltest"
)

// TestClientsCannotMakeSeriesOfMetrics: what a client chooses freely (names of namespaces and objects, user agents, paths,
// methods, parameters) is in no label.
func TestClientsCannotMakeSeriesOfMetrics(t *testing.T) {
	s := controltest.Start(t)
	client, err := rest.HTTPClientFor(s.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	attack := func(i int) {
		name := fmt.Sprintf("attack-%d", i)
		ask := func(method, path, body string) {
			header := http.Header{"User-Agent": {name + "/1.0"}, "Content-Type": {"application/json"}, "Impersonate-User": {name}, "Impersonate-Group": {"system:masters"}}
			s.Ask(t, client, method, path, header, strings.NewReader(body))
		}
		ask("POST", "/api/v1/namespaces", `{"metadata":{"name":"`+name+`"}}`)
		ask("POST", "/api/v1/namespaces/"+name+"/configmaps", `{"metadata":{"name":"`+name+`"}}`)
		ask("GET", "/api/v1/namespaces/"+name+"/configmaps/"+name, "")
		ask("GET", "/api/v1/namespaces/"+name+"/configmaps?labelSelector=a%3D"+name+"&limit="+fmt.Sprint(i+1), "")
		ask("GET", "/api/v1/namespaces/"+name+"/"+name, "")
		ask("GET", "/apis/"+name+".example.com/v1/"+name, "")
		ask("GET", "/"+name, "")
		ask("BREW"+fmt.Sprint(i), "/api/v1/namespaces", "")
		ask("DELETE", "/api/v1/namespaces/"+name+"/configmaps/"+name, "")
	}
	series := func() int {
		_, body := s.Ask(t, client, "GET", "/metrics", nil, nil)
		if !strings.Contains(body, "apiserver_request_total") {
			t.Fatalf("/metrics shows\n%s", body)
		}
		n := 0
		for line := range strings.Lines(body) {
			if !strings.HasPrefix(line, "#") {
				n++
			}
			if strings.Contains(line, "attack-") {
				t.Errorf("a client's word is in a series: %s", line)
			}
		}
		return n
	}
	for i := range 5 {
		attack(i)
	}
	if code, body := s.Ask(t, client, "GET", "/metrics/slis", nil, nil); code != http.StatusOK || !strings.Contains(body, "kubernetes_healthcheck") {
		t.Errorf("/metrics/slis: %d %.300s", code, body)
	}
	before := series()
	for i := range 40 {
		attack(100 + i)
	}
	if after := series(); after > before+before/50 { // a kind of answer may be new
		t.Errorf("%d series after 40 rounds of requests, %d before", after, before)
	}
}
