package control_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/controltest"
	"github.com/balsahq/balsa/control/tunnel"
	"github.com/balsahq/balsa/control/tunnel/mux"
)

// connected is a node that keeps a connection to a Tunnel and dials with dial.
func connected(t *testing.T, ca *pki.Authority, to *tunnel.Tunnel, name string, dial func(context.Context, string) (net.Conn, error)) {
	t.Helper()
	leaf, err := ca.NodeClient(name)
	if err != nil {
		t.Fatal(err)
	}
	a, b := net.Pipe()
	server := tls.Server(a, &tls.Config{GetCertificate: ca.Serving().GetCertificate, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool()})
	node := tls.Client(b, &tls.Config{RootCAs: ca.Pool(), ServerName: "kubernetes.default.svc", GetClientCertificate: leaf.GetClientCertificate})
	var all sync.WaitGroup
	all.Go(func() {
		if err := server.Handshake(); err != nil {
			t.Error(err)
			return
		}
		to.Serve(server)
	})
	ctx, cancel := context.WithCancel(context.Background())
	all.Go(func() { _ = mux.Carry(ctx, mux.CarryConfig{Conn: node, Dial: dial}) })
	t.Cleanup(func() { cancel(); all.Wait() })
}

// TestWebhooksAreAskedByANodeWithAnEndpoint: the server reaches no Service by itself; of the nodes that are connected it
// asks one where the webhook's Service has an endpoint.
func TestWebhooksAreAskedByANodeWithAnEndpoint(t *testing.T) {
	ways, err := tunnel.New(tunnel.Config{
		Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("10.244.0.0/16")},
		Identify: func(c *x509.Certificate) (string, error) {
			return strings.TrimPrefix(c.Subject.CommonName, "system:node:"), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := controltest.Start(t, func(c *control.Config) { c.Tunnel = ways })
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("judge.default.svc", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	hook := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: "judged"}}
		_ = json.NewEncoder(w).Encode(review)
	}))
	hook.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	hook.StartTLS()
	t.Cleanup(hook.Close)
	asked := make(chan string, 100)
	for _, name := range []string{"far", "near", "farther"} {
		connected(t, s.PKI, ways, name, func(ctx context.Context, target string) (net.Conn, error) {
			asked <- name + " " + target
			return new(net.Dialer).DialContext(ctx, "tcp", hook.Listener.Addr().String())
		})
	}
	controltest.Await(t, "the nodes are connected", func() bool { return len(ways.Connected()) == 3 })

	client := s.Admin()
	address := judged(t, client, certPEM)
	_, err = client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "judged") {
		t.Fatalf("want the webhook's refusal: %v", err)
	}
	if got, want := <-asked, fmt.Sprintf("near %s:443", address); got != want {
		t.Errorf("asked: %s, want %s", got, want)
	}
}

// judged makes the Service "judge" with one endpoint that is ready, on the node "near", and a webhook behind it that is
// asked about ConfigMaps. It returns the Service's address.
func judged(t *testing.T, client kubernetes.Interface, authorities []byte) string {
	t.Helper()
	ctx := t.Context()
	service, err := client.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "judge"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "judge", Labels: map[string]string{discoveryv1.LabelServiceName: "judge"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](443)}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.244.1.7"}, NodeName: ptr.To("far"), Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false)}},
			{Addresses: []string{"10.244.2.7"}, NodeName: ptr.To("near")},
		}}
	if _, err := client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	none := admissionregistrationv1.SideEffectClassNone
	_, err = client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "judge"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "judge.example.com", SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: authorities, Service: &admissionregistrationv1.ServiceReference{Namespace: "default", Name: "judge"}},
			Rules: []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{"CREATE"},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}},
		}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return service.Spec.ClusterIP
}
