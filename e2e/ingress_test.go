package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const entrance = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: hello, image: "balsahq/hello:1", ports: [{containerPort: 8080}], readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Secret
metadata: {name: cert}
type: kubernetes.io/tls
data: {tls.crt: %s, tls.key: %s}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec:
  tls: [{hosts: [a.example.com], secretName: cert}]
  rules:
  - host: a.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}
`

const gate = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gate}
spec:
  gatewayClassName: balsa
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: other, port: 8088, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, hostname: g.example.com, tls: {certificateRefs: [{name: gate-cert}]}}
---
apiVersion: v1
kind: Secret
metadata: {name: gate-cert}
type: kubernetes.io/tls
data: {tls.crt: %s, tls.key: %s}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec:
  parentRefs: [{name: gate}]
  hostnames: [g.example.com]
  rules:
  - matches: [{headers: [{name: x-who, value: friend}]}]
    backendRefs: [{name: web, port: 80}]
  - matches: [{path: {type: PathPrefix, value: /old}}]
    filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /new}}}]
`

// keyPair returns a self-signed certificate for a name, in the form of a Secret.
func keyPair(t *testing.T, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, der []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return encode("CERTIFICATE", der), encode("EC PRIVATE KEY", raw)
}

// through returns a client on one host whose requests all go to another host, whatever their URLs say.
func through(from, at *cluster) *http.Client {
	return &http.Client{
		Timeout:       20 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 8,
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				_, port, err := net.SplitHostPort(addr)
				if err != nil {
					return nil, err
				}
				return from.Dial(ctx, network, net.JoinHostPort(at.Addr.String(), port))
			},
		},
	}
}

// asks returns a check of a response's status and, for https, of the certificate's name.
func asks(c *http.Client, url, header string, status int, shown string) func() error {
	return func() error {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if name, value, ok := strings.Cut(header, ": "); ok {
			req.Header.Set(name, value)
		}
		resp, err := c.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != status {
			return fmt.Errorf("%s: status %d, want %d: %s", url, resp.StatusCode, status, body)
		}
		if shown != "" && resp.TLS.PeerCertificates[0].Subject.CommonName != shown {
			return fmt.Errorf("%s: certificate of %s, want %s", url, resp.TLS.PeerCertificates[0].Subject.CommonName, shown)
		}
		return nil
	}
}

// TestIngressAndGateway: every agent serves Ingresses and Gateways with the certificates they name, and their status
// names the agents. No request fails while the pods behind them are replaced.
func TestIngressAndGateway(t *testing.T) {
	s := newSeveral(t, 1, 2, 0)
	first := s.servers[0]
	s.must(first.Start("server", "--gateway-api"))
	s.ready(first)
	for _, a := range s.agents {
		s.join(a, "agent")
	}
	first.eventually("the GatewayClass is accepted", first.wants("True", "get", "gatewayclass", "balsa", "-o", `jsonpath={.status.conditions[?(@.type=="Accepted")].status}`))
	for _, a := range s.agents {
		if conn, err := first.Dial(t.Context(), "tcp", net.JoinHostPort(a.Addr.String(), "80")); err == nil {
			conn.Close()
			t.Errorf("%s listens although there is nothing to serve", a.NodeName())
		}
	}
	cert, key := keyPair(t, "a.example.com")
	first.apply(fmt.Sprintf(entrance, cert, key))
	cert, key = keyPair(t, "g.example.com")
	first.apply(fmt.Sprintf(gate, cert, key))
	var clients []*http.Client
	for _, a := range s.agents {
		c := through(first, a)
		clients = append(clients, c)
		for _, check := range []func() error{
			asks(c, "http://a.example.com/", "", 200, ""), asks(c, "https://a.example.com/", "", 200, "a.example.com"),
			asks(c, "http://g.example.com/", "x-who: friend", 200, ""), asks(c, "http://g.example.com/", "", 404, ""),
			asks(c, "https://g.example.com/", "x-who: friend", 200, "g.example.com"), asks(c, "http://g.example.com:8088/old/x", "", 302, ""),
			asks(c, "http://other.example.com/", "", 404, ""),
		} {
			first.eventually(a.NodeName()+" serves", check)
		}
		first.eventually("the Ingress says where", first.wants(a.Addr.String(), "get", "ingress", "web", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"))
		first.eventually("the Gateway says where", first.wants(a.Addr.String(), "get", "gateway", "gate", "-o", "jsonpath={.status.addresses[*].value}"))
	}
	first.eventually("the Gateway is programmed", first.wants("True", "get", "gateway", "gate", "-o", `jsonpath={.status.conditions[?(@.type=="Programmed")].status}`))
	first.eventually("the route is accepted", first.wants("True", "get", "httproute", "web", "-o", `jsonpath={.status.parents[0].conditions[?(@.type=="Accepted")].status}`))
	replaced(t, first, clients)
	first.kubectl("delete", "ingress/web", "gateway/gate")
	for _, a := range s.agents {
		first.eventually("the ports close", func() error {
			conn, err := first.Dial(t.Context(), "tcp", net.JoinHostPort(a.Addr.String(), "80"))
			if err != nil {
				return nil
			}
			conn.Close()
			return fmt.Errorf("%s still listens", a.NodeName())
		})
	}
}

// replaced rolls the pods while requests are sent.
func replaced(t *testing.T, c *cluster, clients []*http.Client) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	var done atomic.Int64
	for i := range 4 {
		ask := asks(clients[i%len(clients)], "http://a.example.com/", "", 200, "")
		load.Go(func() {
			for ctx.Err() == nil {
				if err := ask(); err != nil {
					t.Errorf("while pods are replaced: %v", err)
					return
				}
				done.Add(1)
			}
		})
	}
	c.kubectl("rollout", "restart", "deployment/web")
	c.kubectl("rollout", "status", "deployment/web", "--timeout=90s")
	stop()
	load.Wait()
	t.Logf("%d requests while the pods were replaced, none failed: %v", done.Load(), !t.Failed())
}
