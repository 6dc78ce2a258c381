package hardening

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

const (
	// probeTime bounds one request or handshake of a probe.
	probeTime = 5 * time.Second
	// mostAnswer bounds the bytes of an answer that are read.
	mostAnswer = 1 << 20
	// kubeletPort is the port of a node whose Node object names none; readOnlyPort is the kubelet's port without credentials.
	kubeletPort, readOnlyPort = 10250, 10255
)

// server reads the settings of one server and probes it, at its own address.
func (s Source) server(ctx context.Context, address string) Server {
	out := Server{Name: address}
	own := rest.CopyConfig(s.Rest)
	own.Host = "https://" + address
	client, err := rest.HTTPClientFor(own)
	if err != nil {
		out.Err = err.Error()
		return out
	}
	var flagz struct {
		Flags map[string]string `json:"flags"`
	}
	accept := http.Header{"Accept": {"application/json;g=config.k8s.io;v=v1beta1;as=Flagz"}}
	if err := getJSON(ctx, client, own.Host+"/flagz", accept, &flagz); err != nil {
		out.Err = "cannot read its settings (/flagz): " + err.Error()
		return out
	}
	out.Flags = flagz.Flags
	out.Profiles = status(ctx, client, own.Host+"/debug/pprof/") == http.StatusOK
	out.Anonymous = answered(ctx, own.Host, "/api/v1/namespaces", "/api/v1/namespaces/kube-system/secrets", "/apis/apps/v1/deployments", "/metrics", "/flagz", "/openapi/v2")
	out.OldTLS, out.WeakCiphers = weakHandshakes(ctx, address)
	return out
}

// node reads the settings of a node through the API, and probes its ports from this machine.
func (s Source) node(ctx context.Context, n *corev1.Node) Node {
	out := Node{Name: n.Name}
	var answer struct {
		Config map[string]any `json:"kubeletconfig"`
	}
	ctx, cancel := context.WithTimeout(ctx, 4*probeTime)
	defer cancel()
	raw, err := s.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + n.Name + "/proxy/configz").DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(raw, &answer)
	}
	if out.Config = answer.Config; err != nil {
		out.Err = "cannot read its settings (/configz): " + err.Error()
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP && !out.Reached {
			port := kubeletPort
			if p := n.Status.DaemonEndpoints.KubeletEndpoint.Port; p > 0 {
				port = int(p)
			}
			probeNode(ctx, &out, a.Address, port)
		}
	}
	return out
}

func probeNode(ctx context.Context, out *Node, host string, port int) {
	address := net.JoinHostPort(host, strconv.Itoa(port))
	if out.Reached = connects(ctx, address); !out.Reached {
		return
	}
	out.Anonymous = answered(ctx, "https://"+address, "/pods", "/configz", "/metrics", "/stats/summary", "/logs/")
	out.ReadOnlyPort = connects(ctx, net.JoinHostPort(host, strconv.Itoa(readOnlyPort)))
	out.OldTLS, out.WeakCiphers = weakHandshakes(ctx, address)
}

func connects(ctx context.Context, address string) bool {
	conn, err := (&net.Dialer{Timeout: probeTime}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// answered returns the requests that a server answers to a client without credentials. The server's certificate is not
// verified, because the answers are not used.
func answered(ctx context.Context, base string, paths ...string) []string {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	var out []string
	for _, path := range paths {
		if code := status(ctx, &http.Client{Transport: transport}, base+path); code/100 == 2 {
			out = append(out, "GET "+path)
		}
	}
	return out
}

// status returns the status of a GET, or 0 when there was no answer.
func status(ctx context.Context, client *http.Client, url string) int {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	res, err := client.Do(req)
	if err != nil {
		return 0
	}
	res.Body.Close()
	return res.StatusCode
}

func getJSON(ctx context.Context, client *http.Client, url string, header http.Header, into any) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header = header
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	raw, err := io.ReadAll(io.LimitReader(res.Body, mostAnswer))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("cannot decode the answer: %w", err)
	}
	return nil
}

// weakHandshakes tries TLS versions before 1.2, and the cipher suites of TLS 1.2 that Go calls insecure. It returns those
// that the server accepts.
func weakHandshakes(ctx context.Context, address string) (old string, ciphers []string) {
	for _, v := range []uint16{tls.VersionTLS10, tls.VersionTLS11} {
		if handshakes(ctx, address, &tls.Config{MinVersion: v, MaxVersion: v}) {
			old = tls.VersionName(v)
		}
	}
	for _, c := range tls.InsecureCipherSuites() {
		if handshakes(ctx, address, &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{c.ID}}) {
			ciphers = append(ciphers, c.Name)
		}
	}
	return old, ciphers
}

func handshakes(ctx context.Context, address string, conf *tls.Config) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	conf.InsecureSkipVerify = true // only whether the handshake succeeds matters
	conf.NextProtos = []string{"http/1.1"}
	conn, err := (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
