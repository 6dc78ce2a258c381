package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/overlay/check"
	"github.com/balsahq/balsa/overlay/routes"
)

func TestRoutesInEveryForm(t *testing.T) {
	nodes := []routes.Node{
		{Name: "a", Address: netip.MustParseAddr("192.0.2.1"), Address6: netip.MustParseAddr("2001:db8::1"),
			Pods: netip.MustParsePrefix("10.244.0.0/24"), Pods6: netip.MustParsePrefix("fd00::/64")},
		{Name: "b", Address: netip.MustParseAddr("192.0.2.2"), Pods: netip.MustParsePrefix("10.244.1.0/24"), Since: 1},
		{Name: "new", Address: netip.MustParseAddr("192.0.2.3")},
		{Name: "thief", Address: netip.MustParseAddr("192.0.2.4"), Pods: netip.MustParsePrefix("10.244.1.0/24"), Since: 2},
	}
	routes, faults := routes.Export(podNetworks(nodes), nodes)
	if len(faults) != 1 || !strings.Contains(faults[0], "thief") {
		t.Errorf("faults %v", faults)
	}
	for form, want := range map[string]string{
		"ip": "ip route replace 10.244.0.0/24 via 192.0.2.1\nip route replace 10.244.1.0/24 via 192.0.2.2\nip -6 route replace fd00::/64 via 2001:db8::1\n",
		"bird": "protocol static balsa_pods_ipv4 {\n\tipv4;\n\troute 10.244.0.0/24 via 192.0.2.1; # a\n\troute 10.244.1.0/24 via 192.0.2.2; # b\n}\n" +
			"protocol static balsa_pods_ipv6 {\n\tipv6;\n\troute fd00::/64 via 2001:db8::1; # a\n}\n",
		"frr": "! a\nip route 10.244.0.0/24 192.0.2.1\n! b\nip route 10.244.1.0/24 192.0.2.2\n! a\nipv6 route fd00::/64 2001:db8::1\n",
	} {
		var out bytes.Buffer
		if err := routeFormats[form](&out, routes); err != nil || out.String() != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", form, err, out.String(), want)
		}
	}
	var out bytes.Buffer
	var rows []map[string]string
	if err := jsonRoutes(&out, routes); err != nil || json.Unmarshal(out.Bytes(), &rows) != nil || len(rows) != 3 || rows[1]["via"] != "192.0.2.2" {
		t.Errorf("json: %v %s", err, out.String())
	}
	out.Reset()
	if err := jsonRoutes(&out, nil); err != nil || strings.TrimSpace(out.String()) != "[]" {
		t.Errorf("no routes: %v %s", err, out.String())
	}
}

// TestNodesAreAskedThroughTheAPI: what the node or the API server says comes through in its words.
func TestNodesAreAskedThroughTheAPI(t *testing.T) {
	answer, code := `{"heard":["b"]}`, http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/api/v1/nodes/a/proxy/balsa/netcheck" {
			t.Errorf("%s %s", r.Method, r.URL.Path)
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(answer))
	}))
	defer server.Close()
	n := &netCheck{apiClient: &apiClient{rest: &rest.Config{Host: server.URL}}, http: server.Client()}
	ask := func() (*check.Reply, error) {
		return n.call(context.Background(), "a", &check.Request{Close: true})
	}
	if reply, err := ask(); err != nil || len(reply.Heard) != 1 {
		t.Errorf("%v %v", reply, err)
	}
	for _, tt := range []struct {
		code         int
		answer, want string
	}{
		{404, "404 page not found\n", "the node knows no network check"},
		{409, "4 checks are under way\n", "4 checks are under way"},
		{403, `{"kind":"Status","message":"nodes \"a\" is forbidden"}`, `nodes "a" is forbidden`},
		{502, "", "Bad Gateway"},
		{200, "nonsense", "the node's answer"},
	} {
		if code, answer = tt.code, tt.answer; true {
			if _, err := ask(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%d %q: %v, want %q", tt.code, tt.answer, err, tt.want)
			}
		}
	}
}

func TestCheckedNode(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{PodCIDR: "10.244.0.0/24"}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "a"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	if got := checkedNode(n); got.Address != netip.MustParseAddrPort("192.0.2.1:10250") || got.PodCIDR != "10.244.0.0/24" {
		t.Errorf("%+v", got)
	}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = 12345
	if got := checkedNode(n); got.Address.Port() != 12345 {
		t.Errorf("%+v", got)
	}
}

// TestObjectsOfACheckAreInOneNamespace: taking that away takes all away; those of checks that were killed go too.
func TestObjectsOfACheckAreInOneNamespace(t *testing.T) {
	old := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "balsa-net-check-old", Labels: map[string]string{checkLabel: ""}, CreationTimestamp: metav1.Unix(1000, 0)}}
	young := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "balsa-net-check-young", Labels: map[string]string{checkLabel: ""}, CreationTimestamp: metav1.Now()}}
	other := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other", CreationTimestamp: metav1.Unix(1000, 0)}}
	o := &netObjects{client: fake.NewClientset(old, young, other)}
	if err := o.createNamespace(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := o.client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 3 {
		t.Fatalf("%v %v", list, err)
	}
	for _, ns := range list.Items {
		if ns.Name == old.Name {
			t.Error("the namespace of a killed check stays")
		}
	}
}
