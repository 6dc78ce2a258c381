package rest

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/kubelet/client"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/tunnel"
)

// Nodes connects to nodes and to pods on them. *tunnel.Tunnel implements it.
type Nodes interface {
	// Kubelet connects to a node's kubelet API. prove, which may be nil, checks that a connection ends at that node.
	Kubelet(ctx context.Context, node, address string, prove tunnel.Prover) (net.Conn, error)
	// Node connects to an address of the node or of a pod on it.
	Node(ctx context.Context, node, address string) (net.Conn, error)
}

// directDialer implements Nodes where a plain dial reaches every node.
type directDialer func(ctx context.Context, network, address string) (net.Conn, error)

// Kubelet implements Nodes.
func (d directDialer) Kubelet(ctx context.Context, _, address string, _ tunnel.Prover) (net.Conn, error) {
	return d(ctx, "tcp", address)
}

// Node implements Nodes.
func (d directDialer) Node(ctx context.Context, _, address string) (net.Conn, error) {
	return d(ctx, "tcp", address)
}

// nodeTransports holds the connections to nodes and pods.
type nodeTransports struct {
	nodes  rest.Getter
	ways   Nodes
	ca     func() *x509.CertPool // asked at each handshake: it may be rotated
	client func(*tls.CertificateRequestInfo) (*tls.Certificate, error)

	mu     sync.Mutex
	byNode map[string]*transports // by node
}

// transports are the HTTP transports for one node.
type transports struct {
	kubelet  *http.Transport // verifies by the cluster CA that this node answers, and shows the API server's client certificate
	insecure *http.Transport // the same without verification, for logs whose reader asked for that
	plain    *http.Transport // for proxied pods, Services and other ports, whose certificates are not verified
	shown    []byte          // the client certificate of the API server that their connections show
	used     time.Time
}

var _ client.ConnectionInfoGetter = (*nodeTransports)(nil)

// addressOrder is the order in which a Node's address types are preferred.
var addressOrder = []api.NodeAddressType{api.NodeInternalIP, api.NodeExternalIP, api.NodeInternalDNS, api.NodeExternalDNS, api.NodeHostName}

const (
	defaultKubeletPort = 10250
	// transportsKept is how long unused transports are kept; they are dropped when those of another node are made. It
	// is longer than the idle time of a connection.
	transportsKept = 5 * time.Minute
)

func newNodeTransports(nodes rest.Getter, cfg Config) *nodeTransports {
	r := &nodeTransports{nodes: nodes, ways: cfg.Nodes, ca: cfg.ClusterCA, client: cfg.KubeletClient, byNode: map[string]*transports{}}
	if r.ways == nil {
		dial := cfg.Dial
		if dial == nil {
			dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
		}
		r.ways = directDialer(dial)
	}
	return r
}

// forNode returns the transports of a node, and makes them the first time; "" stands for no particular node.
func (r *nodeTransports) forNode(node string) *transports {
	now, certificate := time.Now(), r.certificate()
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.byNode[node]; l != nil {
		if bytes.Equal(l.shown, certificate) {
			l.used = now
			return l
		}
		// A kubelet checks the certificate of a connection at each request. After a rotation of the CA it refuses what
		// comes over connections that show the old certificate.
		l.kubelet.CloseIdleConnections()
		l.insecure.CloseIdleConnections()
	}
	for name, l := range r.byNode {
		if now.Sub(l.used) > transportsKept {
			delete(r.byNode, name) // running requests continue, idle connections close by themselves
		}
	}
	l := r.newTransports(node)
	l.used, l.shown = now, certificate
	r.byNode[node] = l
	return l
}

// certificate returns the client certificate that a new connection to a kubelet would show; nil when there is none.
func (r *nodeTransports) certificate() []byte {
	if r.client == nil {
		return nil
	}
	c, err := r.client(&tls.CertificateRequestInfo{})
	if err != nil || c == nil || len(c.Certificate) == 0 {
		return nil
	}
	return c.Certificate[0]
}

func (r *nodeTransports) newTransports(node string) *transports {
	transport := func(c *tls.Config, dial func(ctx context.Context, address string) (net.Conn, error)) *http.Transport {
		return &http.Transport{
			DialContext:     func(ctx context.Context, _, address string) (net.Conn, error) { return dial(ctx, address) },
			TLSClientConfig: c, TLSHandshakeTimeout: 10 * time.Second, MaxIdleConnsPerHost: 4, IdleConnTimeout: 90 * time.Second,
		}
	}
	verified := r.verified(node)
	careless := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, GetClientCertificate: r.client}
	return &transports{
		kubelet: transport(verified, func(ctx context.Context, address string) (net.Conn, error) {
			return r.ways.Kubelet(ctx, node, address, handshakeProver(verified, address))
		}),
		insecure: transport(careless, func(ctx context.Context, address string) (net.Conn, error) {
			return r.ways.Kubelet(ctx, node, address, nil)
		}),
		plain: transport(&tls.Config{InsecureSkipVerify: true}, func(ctx context.Context, address string) (net.Conn, error) {
			return r.ways.Node(ctx, node, address)
		}),
	}
}

// verified accepts a node's own certificate: of the cluster CA, for the dialled address, and not of another node.
func (r *nodeTransports) verified(node string) *tls.Config {
	return pki.TrustNow(&tls.Config{
		MinVersion: tls.VersionTLS12, GetClientCertificate: r.client,
		VerifyConnection: func(s tls.ConnectionState) error {
			if got, want := s.PeerCertificates[0].Subject.CommonName, "system:node:"+node; got != want {
				return fmt.Errorf("x509: the certificate belongs to %q, want %q", got, want)
			}
			return nil
		},
	}, r.ca)
}

// handshakeProver returns a check that does the TLS handshake that requests will do.
func handshakeProver(verified *tls.Config, address string) tunnel.Prover {
	return func(ctx context.Context, c net.Conn) error {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return err
		}
		config := verified.Clone()
		config.ServerName = host
		return tls.Client(c, config).HandshakeContext(ctx)
	}
}

// GetConnectionInfo implements client.ConnectionInfoGetter from the Node's status.
func (r *nodeTransports) GetConnectionInfo(ctx context.Context, name types.NodeName) (*client.ConnectionInfo, error) {
	if r.nodes == nil {
		return nil, apierrors.NewServiceUnavailable("this server has no registry of nodes")
	}
	obj, err := r.nodes.Get(ctx, string(name), &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	node, ok := obj.(*api.Node)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("%T is not a Node", obj))
	}
	host, err := nodeHost(node)
	if err != nil {
		return nil, apierrors.NewServiceUnavailable(err.Error())
	}
	port := int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if port == 0 {
		port = defaultKubeletPort
	}
	l := r.forNode(node.Name)
	return &client.ConnectionInfo{Scheme: "https", Hostname: host, Port: strconv.Itoa(port),
		Transport: l.kubelet, InsecureSkipTLSVerifyTransport: l.insecure, NodeFeatures: node.Status.DeclaredFeatures}, nil
}

func nodeHost(node *api.Node) (string, error) {
	for _, t := range addressOrder {
		for _, a := range node.Status.Addresses {
			if a.Type == t && a.Address != "" {
				return a.Address, nil
			}
		}
	}
	return "", fmt.Errorf("node %s has no address yet; its agent reports one when it starts", node.Name)
}
