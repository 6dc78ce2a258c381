package aggregation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	utilproxy "k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericfeatures "k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/streaming/pkg/httpstream"
)

const (
	dialTimeout      = 30 * time.Second
	handshakeTimeout = 10 * time.Second
	idleTimeout      = 90 * time.Second
)

// targetKey identifies a target: its address and the CAs that prove it. APIServices with the same key share a target.
type targetKey struct {
	namespace, service string
	port               int32
	insecure           bool
	authorities        string // PEM
}

func targetKeyOf(s *apiregistrationv1.APIService) targetKey {
	p := targetKey{namespace: s.Spec.Service.Namespace, service: s.Spec.Service.Name, port: 443, insecure: s.Spec.InsecureSkipTLSVerify, authorities: string(s.Spec.CABundle)}
	if s.Spec.Service.Port != nil {
		p.port = *s.Spec.Service.Port
	}
	return p
}

// resolver returns a URL with the host and port of an endpoint for a Service's port.
type resolver func(namespace, service string, port int32) (*url.URL, error)

// target is a server that APIServices name.
type target struct {
	targetKey
	resolve   resolver
	transport *http.Transport
	fault     error // why it cannot be reached, whatever its Service says

	open  context.Context // ends when no APIService names the target any more
	close func()
}

func newTarget(p targetKey, cfg Config, resolve resolver) *target {
	t := &target{targetKey: p, resolve: resolve}
	trust := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: p.service + "." + p.namespace + ".svc", InsecureSkipVerify: p.insecure,
		GetClientCertificate: cfg.Certificate.GetClientCertificate,
	}
	if p.authorities != "" {
		trust.RootCAs = x509.NewCertPool()
		if !trust.RootCAs.AppendCertsFromPEM([]byte(p.authorities)) {
			t.fault = errors.New("caBundle holds no certificate in PEM form")
		}
	}
	t.transport = utilnet.SetTransportDefaults(&http.Transport{
		DialContext: cfg.Dial, TLSClientConfig: trust, TLSHandshakeTimeout: handshakeTimeout, IdleConnTimeout: idleTimeout, MaxIdleConnsPerHost: 25,
	})
	ctx, cancel := context.WithCancel(context.Background())
	t.open = ctx
	t.close = func() {
		cancel()
		t.transport.CloseIdleConnections()
	}
	return t
}

// location returns the URL to which a request for a path goes now.
func (t *target) location(path, query string) (*url.URL, error) {
	if t.fault != nil {
		return nil, t.fault
	}
	at, err := t.resolve(t.namespace, t.service, t.port)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "https", Host: at.Host, Path: path, RawQuery: query}, nil
}

// ServeHTTP passes a request on with its user in headers. It has to run after authentication and authorization.
func (t *target) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, ok := request.UserFrom(r.Context())
	if !ok {
		refuse(w, r, apierrors.NewInternalError(errors.New("the request has no user")))
		return
	}
	location, err := t.location(r.URL.Path, r.URL.Query().Encode())
	if err != nil {
		refuse(w, r, apierrors.NewServiceUnavailable(fmt.Sprintf("the server behind Service %s/%s cannot be reached: %v", t.namespace, t.service, err)))
		return
	}
	on, cancel := proxy.NewRequestForProxy(location, r)
	defer cancel()
	upgrade, uid := httpstream.IsUpgradeRequest(r), ""
	if utilfeature.DefaultFeatureGate.Enabled(genericfeatures.RemoteRequestHeaderUID) {
		uid = user.GetUID()
	}
	through := transport.NewAuthProxyRoundTripper(user.GetName(), uid, user.GetGroups(), user.GetExtra(), t.transport)
	if upgrade { // the upgrade proxy dials by itself, without the round tripper
		transport.SetAuthProxyHeaders(on, user.GetName(), uid, user.GetGroups(), user.GetExtra())
	}
	handler := utilproxy.NewUpgradeAwareHandler(location, through, true, upgrade, unreachable{t})
	handler.RejectForwardingRedirects = true
	flowcontrol.RequestDelegated(r.Context())
	handler.ServeHTTP(w, on)
}

// unreachable is the error handler for a target that does not answer.
type unreachable struct{ *target }

// Error implements proxy.ErrorResponder.
func (u unreachable) Error(w http.ResponseWriter, r *http.Request, err error) {
	refuse(w, r, apierrors.NewServiceUnavailable(fmt.Sprintf("the server behind Service %s/%s does not answer: %v", u.namespace, u.service, err)))
}

// refuse answers with an error in the encoding that the client accepts.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, aggregatorscheme.Codecs, schema.GroupVersion{Version: "v1"}, w, r)
}

// String names the target for logs.
func (p targetKey) String() string {
	return "https://" + net.JoinHostPort(p.service+"."+p.namespace+".svc", strconv.Itoa(int(p.port)))
}
