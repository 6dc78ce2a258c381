package rest_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	restclient "k8s.io/client-go/rest"
	clientforward "k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	streaming "k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// greeter is a pod that sends its port number on each connection.
type greeter struct{}

func (greeter) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	_, err := fmt.Fprintf(stream, "port %d", port)
	return err
}

// echo is a container whose command repeats its input.
type echo struct{}

func (echo) ExecInContainer(_ context.Context, _, _, _ string, cmd []string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan streaming.TerminalSize, _ time.Duration) error {
	fmt.Fprintf(out, "ran %s: ", strings.Join(cmd, " "))
	_, err := io.Copy(out, in)
	return err
}

// kubelet serves logs and exec of every pod over TLS as the Node called name. A trusted one has the Node's certificate
// and accepts only the API server's.
func kubelet(t *testing.T, name string, trusted bool) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/containerLogs/", func(w http.ResponseWriter, r *http.Request) {
		who := "nobody" // the impostor does not ask for a client certificate
		if len(r.TLS.PeerCertificates) > 0 {
			who = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		fmt.Fprintf(w, "log of %s for %s", r.URL.Path, who)
	})
	mux.HandleFunc("/exec/", func(w http.ResponseWriter, r *http.Request) {
		opts, err := streaming.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		streaming.ServeExec(w, r, echo{}, "p", "", "c", r.URL.Query()["command"], opts, time.Minute, time.Minute, []string{"v4.channel.k8s.io", "channel.k8s.io"})
	})
	mux.HandleFunc("/portForward/", func(w http.ResponseWriter, r *http.Request) {
		portforward.ServePortForward(w, r, greeter{}, "p", "", nil, time.Minute, time.Minute, []string{portforward.ProtocolV1Name})
	})
	srv := httptest.NewUnstartedServer(mux)
	if trusted {
		leaf, err := ca.NodeServing(name, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := leaf.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		srv.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool()}
	}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	host, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	node, err := admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "nowhere.invalid"}, {Type: corev1.NodeInternalIP, Address: host}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(n)
	if _, err := admin.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func podOn(t *testing.T, node string) string {
	t.Helper()
	ns := namespace(t)
	p := pod(t, ns, "p", nil)
	if err := bind(t, ns, "p", node, p.UID); err != nil {
		t.Fatal(err)
	}
	p, err := admin.CoreV1().Pods(ns).Get(t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Status.Phase = corev1.PodRunning
	if _, err := admin.CoreV1().Pods(ns).UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return ns
}

func TestLogsComeFromTheNodeAndOnlyFromATrustedOne(t *testing.T) {
	kubelet(t, "logs", true)
	ns := podOn(t, "logs")
	out, err := admin.CoreV1().Pods(ns).GetLogs("p", &corev1.PodLogOptions{}).DoRaw(t.Context())
	if err != nil || string(out) != "log of /containerLogs/"+ns+"/p/c for kube-apiserver-kubelet-client" {
		t.Fatalf("%q, %v", out, err)
	}
	kubelet(t, "impostor", false)
	ns = podOn(t, "impostor")
	if out, err := admin.CoreV1().Pods(ns).GetLogs("p", &corev1.PodLogOptions{}).DoRaw(t.Context()); err == nil || !strings.Contains(string(out), "x509") {
		t.Fatalf("%q, %v", out, err)
	}
	if out, err := admin.CoreV1().Pods(ns).GetLogs("p", &corev1.PodLogOptions{InsecureSkipTLSVerifyBackend: true}).DoRaw(t.Context()); err != nil || !strings.HasPrefix(string(out), "log of") {
		t.Fatalf("asked not to verify: %q, %v", out, err)
	}
	pod(t, ns, "waiting", nil)
	if _, err := admin.CoreV1().Pods(ns).GetLogs("waiting", &corev1.PodLogOptions{}).DoRaw(t.Context()); err != nil {
		t.Fatalf("a pod without node has an empty log: %v", err)
	}
}

// TestANodeDoesNotPassForAnother: a Node with the address of another node is refused, although the certificate at that
// address is of the cluster CA and for that address.
func TestANodeDoesNotPassForAnother(t *testing.T) {
	kubelet(t, "genuine", true)
	genuine, err := admin.CoreV1().Nodes().Get(t.Context(), "genuine", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claims, err := admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "claims"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claims.Status = genuine.Status
	if _, err := admin.CoreV1().Nodes().UpdateStatus(t.Context(), claims, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	ns := podOn(t, "claims")
	out, err := admin.CoreV1().Pods(ns).GetLogs("p", &corev1.PodLogOptions{}).DoRaw(t.Context())
	if err == nil || !strings.Contains(string(out), `belongs to "system:node:genuine", want "system:node:claims"`) {
		t.Fatalf("%q, %v", out, err)
	}
	if out, err := admin.CoreV1().Pods(ns).GetLogs("p", &corev1.PodLogOptions{InsecureSkipTLSVerifyBackend: true}).DoRaw(t.Context()); err != nil {
		t.Fatalf("asked not to verify: %q, %v", out, err)
	}
}

// outside is a client over TLS with the administrator's certificate.
func outside() *restclient.Config {
	return &restclient.Config{Host: "https://" + address, TLSClientConfig: restclient.TLSClientConfig{
		CAData: ca.CA(), CertData: ca.Admin().CertPEM(), KeyData: ca.Admin().KeyPEM()}}
}

func TestExecBySPDYAndByWebSocket(t *testing.T) {
	kubelet(t, "exec", true)
	ns := podOn(t, "exec")
	client := kubernetes.NewForConfigOrDie(outside())
	req := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(ns).Name("p").SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: []string{"cat"}, Stdin: true, Stdout: true}, scheme.ParameterCodec)
	spdy, err := remotecommand.NewSPDYExecutor(outside(), "POST", req.URL())
	if err != nil {
		t.Fatal(err)
	}
	socket, err := remotecommand.NewWebSocketExecutor(outside(), "GET", req.URL().String())
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range map[string]remotecommand.Executor{"SPDY": spdy, "WebSocket": socket} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out})
			if err != nil || out.String() != "ran cat: hello" {
				t.Fatalf("%q, %v", out.String(), err)
			}
		})
	}
}

func TestPortForwardBySPDYAndByWebSocket(t *testing.T) {
	kubelet(t, "forward", true)
	ns := podOn(t, "forward")
	client := kubernetes.NewForConfigOrDie(outside())
	url := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(ns).Name("p").SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(outside())
	if err != nil {
		t.Fatal(err)
	}
	socket, err := clientforward.NewSPDYOverWebsocketDialer(url, outside())
	if err != nil {
		t.Fatal(err)
	}
	for name, dialer := range map[string]httpstream.Dialer{
		"SPDY": spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", url), "WebSocket": socket,
	} {
		t.Run(name, func(t *testing.T) {
			stop, ready := make(chan struct{}), make(chan struct{})
			fw, err := clientforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- fw.ForwardPorts() }()
			defer func() { close(stop); <-done }()
			select {
			case <-ready:
			case err := <-done:
				done <- nil
				t.Fatal(err)
			case <-time.After(time.Minute):
				t.Fatal("not ready")
			}
			ports, err := fw.GetPorts()
			if err != nil {
				t.Fatal(err)
			}
			conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local), 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(conn)
			if err != nil || string(got) != "port 8080" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
