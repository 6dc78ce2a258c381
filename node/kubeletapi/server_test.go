package kubeletapi

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"
)

// backend is a node with one pod, whose container "c" runs and "w" waits.
type backend struct {
	pod  *v1.Pod
	log  string
	url  string
	done chan struct{}
	last any // request that the runtime got
	err  error
}

func newBackend(t *testing.T) *backend {
	waiting := v1.ContainerStatus{Name: "w", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}
	running := v1.ContainerStatus{Name: "c", ContainerID: "containerd://cid", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}
	return &backend{
		log: filepath.Join(t.TempDir(), "0.log"), done: make(chan struct{}),
		pod: &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"},
			Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", TTY: true}, {Name: "w"}}},
			Status:     v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{running, waiting}},
		},
	}
}

func (b *backend) Pods() []*v1.Pod { return []*v1.Pod{b.pod} }
func (b *backend) Pod(ns, name string) (*v1.Pod, bool) {
	return b.pod, ns == "ns" && name == "p"
}
func (b *backend) RunningPods(context.Context) ([]*v1.Pod, error) { return nil, nil }
func (b *backend) SandboxID(uid types.UID) (string, bool)         { return "sid", uid == "u" }
func (b *backend) ContainerDone(string) <-chan struct{}           { return b.done }
func (b *backend) Runtime() Runtime                               { return b }
func (b *backend) Configz() any                                   { return map[string]int{"maxPods": 110} }
func (b *backend) Summary(context.Context) (*statsv1.Summary, error) {
	at := metav1.NewTime(time.Unix(1000, 0))
	cpu := &statsv1.CPUStats{Time: at, UsageCoreNanoSeconds: ptr.To[uint64](2e9)}
	mem := &statsv1.MemoryStats{Time: at, WorkingSetBytes: ptr.To[uint64](42)}
	return &statsv1.Summary{
		Node: statsv1.NodeStats{NodeName: "n1", CPU: cpu, Memory: mem, Fs: &statsv1.FsStats{}},
		Pods: []statsv1.PodStats{{PodRef: statsv1.PodReference{Name: "p", Namespace: "ns"}, CPU: cpu, Memory: mem,
			Containers: []statsv1.ContainerStats{{Name: "c", CPU: cpu, Memory: mem, StartTime: at}}}},
	}, b.err
}

func (b *backend) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	if id != "cid" {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{LogPath: b.log}}, nil
}
func (b *backend) ExecSync(_ context.Context, id string, cmd []string, _ time.Duration) ([]byte, []byte, error) {
	return []byte(id + " " + strings.Join(cmd, ",")), []byte(" err"), b.err
}
func (b *backend) Exec(_ context.Context, r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	b.last = r
	return &runtimeapi.ExecResponse{Url: b.url}, b.err
}
func (b *backend) Attach(_ context.Context, r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	b.last = r
	return &runtimeapi.AttachResponse{Url: b.url}, b.err
}
func (b *backend) PortForward(_ context.Context, r *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	b.last = r
	return &runtimeapi.PortForwardResponse{Url: b.url}, b.err
}

// byHeader takes the user's name from a header.
type byHeader struct{}

func (byHeader) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	name := r.Header.Get("User")
	if name == "broken" {
		return nil, false, errors.New("review failed")
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: name}}, name != "", nil
}

// grants allows the user root everything, and everybody else the subresource that is their name.
type grants struct{}

func (grants) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetResource() != "nodes" || a.GetName() != "n1" || !a.IsResourceRequest() {
		return authorizer.DecisionDeny, "", errors.New("unexpected attributes")
	}
	if n := a.GetUser().GetName(); n == "root" || n == a.GetVerb()+":"+a.GetSubresource() {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func newServer(t *testing.T, b *backend) *Server {
	t.Helper()
	check := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
	s, err := New(Config{Backend: b, NodeName: "n1", Authenticator: byHeader{}, Authorizer: grants{}, NetCheck: check,
		NodeLogs: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) })})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// serve serves the API over TLS on loopback until the test ends.
func serve(t *testing.T, s *Server) (base string, client *http.Client) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "n1"}, NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	s.cfg.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("the server does not stop")
		}
	})
	return "https://" + l.Addr().String(), &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
}

func get(t *testing.T, h http.Handler, who, method, path string) (int, string) {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	r.Header.Set("User", who)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestEveryPathNeedsItsSubresource(t *testing.T) {
	b := newBackend(t)
	h := newServer(t, b).Handler()
	cases := []struct {
		who, method, path string
		code              int
	}{
		{"", "GET", "/healthz", 401}, {"broken", "GET", "/healthz", 401}, {"nobody", "GET", "/healthz", 403},
		{"get:healthz", "GET", "/healthz", 200}, {"get:proxy", "GET", "/healthz", 200}, {"get:healthz", "GET", "/pods", 403},
		{"get:pods", "GET", "/pods", 200}, {"get:pods", "GET", "/runningpods/", 200}, {"get:configz", "GET", "/configz", 200},
		{"get:log", "GET", "/logs/syslog", 200}, {"get:proxy", "GET", "/logs/syslog", 403}, {"get:pods", "GET", "/logs/", 403}, {"get:log", "GET", "/pods", 403},
		{"get:stats", "GET", "/stats/summary", 200}, {"get:proxy", "GET", "/stats/summary", 403},
		{"get:metrics", "GET", "/metrics", 200}, {"get:metrics", "GET", "/metrics/resource", 200}, {"get:proxy", "GET", "/metrics/cadvisor", 403},
		{"get:proxy", "GET", "/statsx", 404}, {"get:log", "GET", "/logs/", 200}, {"get:metrics", "GET", "/metricsx", 403},
		{"get:proxy", "POST", "/run/ns/p/c?cmd=ls", 403}, {"create:proxy", "POST", "/run/ns/p/c?cmd=ls", 200},
		{"", "POST", "/balsa/netcheck", 401}, {"get:proxy", "POST", "/balsa/netcheck", 403}, {"create:proxy", "POST", "/balsa/netcheck", 202},
		{"root", "GET", "/balsa/netcheck", 405},
		{"root", "DELETE", "/pods", 405}, {"root", "GET", "/checkpoint/x", 404},
	}
	for _, c := range cases {
		if code, body := get(t, h, c.who, c.method, c.path); code != c.code {
			t.Errorf("%s %s as %q: %d %s, want %d", c.method, c.path, c.who, code, body, c.code)
		}
	}
}

func TestAnswers(t *testing.T) {
	b := newBackend(t)
	h := newServer(t, b).Handler()
	_, body := get(t, h, "root", "GET", "/pods")
	var list v1.PodList
	if err := json.Unmarshal([]byte(body), &list); err != nil || list.Kind != "PodList" || len(list.Items) != 1 || list.Items[0].Name != "p" {
		t.Error(body, err)
	}
	if _, body = get(t, h, "root", "GET", "/configz"); body != `{"kubeletconfig":{"maxPods":110}}` {
		t.Error(body)
	}
	if _, body = get(t, h, "root", "POST", "/run/ns/p/u/c?cmd=ls+-l"); body != "cid ls,-l err" {
		t.Error(body)
	}
	if code, body := get(t, h, "root", "POST", "/run/ns/p/other/c"); code != 404 || body != "pod not found" {
		t.Error(code, body)
	}
	_, body = get(t, h, "root", "GET", "/metrics/resource")
	for _, want := range []string{
		`container_cpu_usage_seconds_total{container="c",namespace="ns",pod="p"} 2 1000000`,
		`pod_memory_working_set_bytes{namespace="ns",pod="p"} 42 1000000`,
		"node_cpu_usage_seconds_total 2 1000000", "resource_scrape_error 0",
		`container_start_time_seconds{container="c",namespace="ns",pod="p"} 1000`,
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
	if _, body = get(t, h, "root", "GET", "/metrics/cadvisor"); !strings.Contains(body, `container_memory_working_set_bytes{container="",id="/",image="",name="",namespace="",pod=""} 42 1000000`) {
		t.Error(body)
	}
	_, body = get(t, h, "root", "GET", "/stats/summary?only_cpu_and_memory=true")
	if !strings.Contains(body, `"workingSetBytes":42`) || strings.Contains(body, `"fs"`) {
		t.Error(body)
	}
	b.err = errors.New("runtime gone")
	if _, body = get(t, h, "root", "GET", "/metrics/resource"); !strings.Contains(body, "resource_scrape_error 1\n") {
		t.Error(body)
	}
}

func TestClientsCannotMakeSeriesOfMetrics(t *testing.T) {
	h := newServer(t, newBackend(t)).Handler()
	series := func() int {
		_, body := get(t, h, "root", "GET", "/metrics")
		for _, own := range []string{"go_goroutines ", "process_start_time_seconds ", `kubelet_http_requests_total{long_running="false",method="GET",path="metrics"`} {
			if !strings.Contains(body, own) {
				t.Fatalf("no %s in\n%s", own, body)
			}
		}
		return strings.Count(body, "\nkubelet_")
	}
	get(t, h, "root", "GET", "/metrics")
	get(t, h, "root", "GET", "/nothing")
	get(t, h, "root", "BREW", "/nothing")
	get(t, h, "root", "GET", "/containerLogs/ns/p/c")
	before := series()
	for i := range 100 {
		get(t, h, "root", "GET", fmt.Sprintf("/nothing/%d", i))
		get(t, h, "root", fmt.Sprintf("BREW%d", i), "/nothing")
		get(t, h, "root", "GET", fmt.Sprintf("/containerLogs/ns/p%d/c", i))
	}
	if after := series(); after != before {
		t.Errorf("%d series, %d before 300 requests with paths and methods of their own", after, before)
	}
}

func TestContainerLogs(t *testing.T) {
	b := newBackend(t)
	writeLog(t, b.log, line(1, "stdout", "F", "one")+line(2, "stderr", "F", "two"))
	h := newServer(t, b).Handler()
	cases := []struct {
		path string
		code int
		want string
	}{
		{"ns/p/c", 200, "one\ntwo\n"},
		{"ns/p/c?tailLines=1", 200, "two\n"},
		{"ns/p/c?tail=1&timestamps=true", 200, "2026-01-02T03:04:02.000005000Z two\n"},
		{"ns/p/c?stream=Stdout", 200, "one\n"},
		{"ns/p/c?sinceTime=2026-01-02T03:04:02Z", 200, "two\n"},
		{"ns/p/c?tailLines=x", 400, `{"message": "Unable to decode query."}`},
		{"ns/p/c?tailLines=-1", 422, `{"message": "Invalid request."}`},
		{"ns/p/c?sinceSeconds=0", 422, `{"message": "Invalid request."}`},
		{"ns/p/none", 404, `container "none" not found in pod "p"`},
		{"ns/x/c", 404, `pod "x" does not exist`},
		{"ns/p/w", 400, `container "w" in pod "p" is waiting to start: trying and failing to pull image`},
		{"ns/p/c?previous=true", 400, `previous terminated container "c" in pod "p" not found`},
	}
	for _, c := range cases {
		if code, body := get(t, h, "root", "GET", "/containerLogs/"+c.path); code != c.code || body != c.want {
			t.Errorf("%s: %d %q, want %d %q", c.path, code, body, c.code, c.want)
		}
	}
	b.pod.Status.ContainerStatuses[0].ContainerID = "containerd://gone"
	if code, body := get(t, h, "root", "GET", "/containerLogs/ns/p/c"); code != 400 || body != "unable to retrieve container logs for containerd://gone" {
		t.Error(code, body)
	}
}

func TestLogsAreFollowedOverTheWireAndStopWithTheServer(t *testing.T) {
	b := newBackend(t)
	writeLog(t, b.log, line(1, "stdout", "F", "one"))
	base, client := serve(t, newServer(t, b))
	follow := func() (*http.Response, *bufio.Reader) {
		r, err := http.NewRequestWithContext(t.Context(), "GET", base+"/containerLogs/ns/p/c?follow=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("User", "root")
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		return res, bufio.NewReader(res.Body)
	}
	_, first := follow()
	_, second := follow()
	for _, r := range []*bufio.Reader{first, second} {
		if l, err := r.ReadString('\n'); l != "one\n" {
			t.Fatal(l, err)
		}
	}
	writeLog(t, b.log, line(2, "stdout", "F", "two"))
	if l, err := first.ReadString('\n'); l != "two\n" {
		t.Fatal(l, err)
	}
	close(b.done)
	if _, err := first.ReadString('\n'); err != io.EOF {
		t.Fatal(err)
	}
	b.done = make(chan struct{})
	_, third := follow() // still open when the server stops, which must not wait for it
	if l, err := third.ReadString('\n'); l != "one\n" {
		t.Fatal(l, err)
	}
}

// upgradeServer stands for the runtime's streaming server: it takes over the connection and echoes.
func upgradeServer(t *testing.T) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		rw.Flush()
		io.Copy(conn, rw)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestUpgradedConnectionsArePassedThroughAndClosedWithTheServer(t *testing.T) {
	b := newBackend(t)
	b.url = upgradeServer(t).URL + "/exec/token"
	base, _ := serve(t, newServer(t, b))
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	for path, check := range map[string]func() bool{
		"/exec/ns/p/c?command=sh&command=-c&output=1&error=1": func() bool {
			r := b.last.(*runtimeapi.ExecRequest)
			return r.ContainerId == "cid" && len(r.Cmd) == 2 && r.Stdout && r.Stderr && !r.Stdin && !r.Tty
		},
		"/attach/ns/p/u/c?input=1&output=1&error=1": func() bool {
			r := b.last.(*runtimeapi.AttachRequest)
			return r.ContainerId == "cid" && r.Tty && r.Stdin && !r.Stderr
		},
		"/portForward/ns/p": func() bool { return b.last.(*runtimeapi.PortForwardRequest).PodSandboxId == "sid" },
	} {
		conn, err := tls.Dial("tcp", u.Host, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: n1\r\nUser: root\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n", path)
		in := bufio.NewReader(conn)
		res, err := http.ReadResponse(in, nil)
		if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatal(path, res, err)
		}
		if _, err := conn.Write([]byte("ping\n")); err != nil {
			t.Fatal(err)
		}
		if l, err := in.ReadString('\n'); l != "ping\n" || !check() {
			t.Errorf("%s: %q %v %+v", path, l, err, b.last)
		}
	}
}

func TestStreamingErrors(t *testing.T) {
	b := newBackend(t)
	h := newServer(t, b).Handler()
	for path, want := range map[string]string{
		"/exec/ns/p/c?command=x":          "400 you must specify at least 1 of stdin, stdout, stderr",
		"/exec/ns/p/w?command=x&output=1": `500 container not found ("w")`,
		"/exec/ns/none/c?output=1":        "404 pod does not exist",
		"/exec/ns/p/c?output=1":           `500 the runtime gave no streaming address: ""`,
	} {
		code, body := get(t, h, "root", "POST", path)
		if got := fmt.Sprint(code, " ", body); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	b.err = status.Error(codes.NotFound, "container is gone")
	if code, body := get(t, h, "root", "POST", "/exec/ns/p/c?output=1"); code != 404 || !strings.Contains(body, "container is gone") {
		t.Error(code, body)
	}
	for _, bad := range [][]string{nil, {""}, {"0"}, {"70000"}, {"80,x"}} {
		if _, err := parsePorts(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if got, err := parsePorts([]string{"80,81", "82"}); err != nil || fmt.Sprint(got) != "[80 81 82]" {
		t.Error(got, err)
	}
}

func TestDelegatedReviews(t *testing.T) {
	reviews := 0
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
			reviews++
			var review authnv1.TokenReview
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				t.Error(err)
			}
			review.Status.Authenticated = review.Spec.Token == "good"
			review.Status.User.Username = "system:serviceaccount:ns:sa"
			json.NewEncoder(w).Encode(review)
			return
		}
		var review authzv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		what := review.Spec.ResourceAttributes
		review.Status.Allowed = review.Spec.User == "system:serviceaccount:ns:sa" && what.Subresource == "pods" && what.Verb == "get"
		json.NewEncoder(w).Encode(review)
	}))
	defer api.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	authn, err := NewAuthenticator(client, x509.NewCertPool)
	if err != nil {
		t.Fatal(err)
	}
	authz, err := NewAuthorizer(client)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Backend: newBackend(t), NodeName: "n1", Authenticator: authn, Authorizer: authz})
	if err != nil {
		t.Fatal(err)
	}
	h := s.Handler()
	ask := func(token, path string) int {
		r := httptest.NewRequest("GET", path, nil)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	for _, c := range []struct {
		token, path string
		want        int
	}{{"good", "/pods", 200}, {"good", "/pods", 200}, {"good", "/configz", 403}, {"bad", "/pods", 401}, {"", "/pods", 401}} {
		if got := ask(c.token, c.path); got != c.want {
			t.Errorf("%q %s: %d, want %d", c.token, c.path, got, c.want)
		}
	}
	if reviews != 2 {
		t.Errorf("%d reviews: answers are not remembered", reviews)
	}
}
