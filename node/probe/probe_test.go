package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/record"
)

// log collects what Results was told, with the seconds since the test began.
type log struct {
	mu    sync.Mutex
	begun time.Time
	lines []string
}

func (l *log) add(_ types.UID, _ string, kind Kind, r Result, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf("%v %s %s %s", time.Since(l.begun).Seconds(), kind, r, message))
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

func execProbe(period, delay, failures int32) *v1.Probe {
	return &v1.Probe{
		ProbeHandler:  v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"check", "$(X)"}}},
		PeriodSeconds: period, InitialDelaySeconds: delay, FailureThreshold: failures, SuccessThreshold: 1, TimeoutSeconds: 1,
	}
}

func target(c *v1.Container) Target {
	c.Name = "c"
	c.Env = []v1.EnvVar{{Name: "X", Value: "x"}}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Spec: v1.PodSpec{Containers: []v1.Container{*c}}}
	return Target{Pod: pod, Container: c, ContainerID: "id", PodIP: "127.0.0.1", StartedAt: time.Now()}
}

// script answers exec probes with the next of its exit codes; the last one stays.
type script struct {
	mu    sync.Mutex
	exits []int32
	calls []string
}

func (s *script) run(_ context.Context, id string, cmd []string, _ time.Duration) (int32, []byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, id+" "+strings.Join(cmd, " "))
	exit := s.exits[0]
	if len(s.exits) > 1 {
		s.exits = s.exits[1:]
	}
	return exit, []byte("out"), nil
}

func TestReadinessFollowsItsThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := &log{begun: time.Now()}, &script{exits: []int32{1, 0, 1, 1, 1, 0}}
		events := record.NewFakeRecorder(20)
		m := New(Config{Exec: s.run, Results: l.add, Events: events})
		m.Start(target(&v1.Container{ReadinessProbe: execProbe(5, 3, 2)}))
		m.Start(target(&v1.Container{ReadinessProbe: execProbe(5, 3, 2)})) // the same container: nothing more
		time.Sleep(31 * time.Second)
		m.Close()
		want := "8 Readiness success out\n18 Readiness failure out\n23 Readiness failure out\n28 Readiness success out"
		if got := l.String(); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		if s.calls[0] != "id check x" || len(s.calls) != 6 {
			t.Errorf("%q", s.calls)
		}
		if e := <-events.Events; e != "Warning Unhealthy Readiness probe failed: out" {
			t.Error(e)
		}
	})
}

func TestStartupGatesTheOthersAndEndsWithItsFirstResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := &log{begun: time.Now()}, &script{exits: []int32{1, 1, 0, 1}}
		m := New(Config{Exec: s.run, Results: l.add})
		m.Start(target(&v1.Container{StartupProbe: execProbe(10, 0, 3), LivenessProbe: execProbe(1, 0, 3)}))
		time.Sleep(60 * time.Second)
		m.StopPod("u")
		want := "20 Startup success out\n22 Liveness failure out"
		if got := l.String(); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		if len(s.calls) != 6 {
			t.Errorf("%d checks: a failed liveness probe waits for a new container", len(s.calls))
		}
	})
}

func TestAStartedContainerIsNotProbedForStartupAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := &log{begun: time.Now()}, &script{exits: []int32{0}}
		m := New(Config{Exec: s.run, Results: l.add})
		tg := target(&v1.Container{StartupProbe: execProbe(10, 0, 3), ReadinessProbe: execProbe(10, 0, 3)})
		tg.Started, tg.StartedAt = true, time.Now().Add(-time.Hour)
		m.Start(tg)
		time.Sleep(11 * time.Second)
		m.Close()
		if got := l.String(); !strings.HasSuffix(got, "Readiness success out") || strings.Contains(got, "Startup") {
			t.Error(got)
		}
	})
}

func TestANewContainerReplacesTheOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := &log{begun: time.Now()}, &script{exits: []int32{1}}
		m := New(Config{Exec: s.run, Results: l.add})
		tg := target(&v1.Container{LivenessProbe: execProbe(1, 0, 1), ReadinessProbe: execProbe(1, 1000, 1)})
		m.Start(tg)
		time.Sleep(500 * time.Millisecond)
		tg.ContainerID, tg.StartedAt = "id2", time.Now()
		m.Start(tg)
		synctest.Wait()
		m.StopKind("u", "c", Liveness, Startup)
		m.Stop("u", "c")
		m.Stop("u", "c")
		if got := l.String(); got != "0 Liveness failure out\n0.5 Liveness failure out" {
			t.Error(got)
		}
		if len(m.running) != 0 {
			t.Error("something is left")
		}
	})
}

func TestExecThatNeverAnswersFailsAndOneThatCannotRunDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{begun: time.Now()}
		hang := func(ctx context.Context, _ string, _ []string, _ time.Duration) (int32, []byte, error) {
			<-ctx.Done()
			return 0, nil, ctx.Err()
		}
		m := New(Config{Exec: hang, Results: l.add})
		m.Start(target(&v1.Container{LivenessProbe: execProbe(10, 0, 2)}))
		time.Sleep(30 * time.Second)
		m.Close()
		if got := l.String(); got != `13 Liveness failure command timed out: "check x" timed out after 1s` {
			t.Error(got)
		}
		events, tries := record.NewFakeRecorder(20), 0
		broken := func(context.Context, string, []string, time.Duration) (int32, []byte, error) {
			tries++
			return 0, nil, errors.New("no such container")
		}
		m = New(Config{Exec: broken, Results: l.add, Events: events})
		m.Start(target(&v1.Container{LivenessProbe: execProbe(10, 0, 1)}))
		time.Sleep(5 * time.Second)
		m.Close()
		if e := <-events.Events; e != "Warning Unhealthy Liveness probe errored and resulted in unknown state: no such container" || tries != retries {
			t.Error(e, tries)
		}
		if strings.Count(l.String(), "\n") != 0 {
			t.Error(l)
		}
	})
}

func httpGet(t *testing.T, server string, path string) (*v1.HTTPGetAction, *v1.Container) {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return &v1.HTTPGetAction{Path: path, Port: intstr.FromString("web"), Scheme: v1.URIScheme(strings.ToUpper(u.Scheme))},
		&v1.Container{Ports: []v1.ContainerPort{{Name: "web", ContainerPort: int32(port)}}}
}

func TestHTTP(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	release := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s|%s|%s|%s|%s", r.Host, r.Header.Get("User-Agent"), r.Header.Get("Accept"), r.Header.Get("X-A"), r.URL.RawQuery)
	})
	mux.HandleFunc("/bad", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "password", http.StatusInternalServerError)
	})
	mux.HandleFunc("/near", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ok", http.StatusFound) })
	mux.HandleFunc("/far", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
	})
	mux.HandleFunc("/round", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/round", http.StatusFound) })
	mux.HandleFunc("/huge", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) })
	mux.HandleFunc("/never", func(http.ResponseWriter, *http.Request) { <-release })
	plain, secure := httptest.NewServer(mux), httptest.NewTLSServer(mux)
	defer plain.Close()
	defer secure.Close()
	defer close(release)
	within := time.Minute // what a busy machine may take
	check := func(server, path string) outcome {
		get, c := httpGet(t, server, path)
		get.HTTPHeaders = []v1.HTTPHeader{{Name: "X-A", Value: "b"}, {Name: "Host", Value: "example.org"}}
		return httpCheck(t.Context(), get, c, "127.0.0.1", within)
	}
	for _, server := range []string{plain.URL, secure.URL} {
		if out := check(server, "/ok?q=1"); out.result != Success || out.output != "example.org|kube-probe/1.36|*/*|b|q=1" {
			t.Errorf("%+v", out)
		}
	}
	for path, want := range map[string]outcome{
		"/bad": {result: Failure, output: "HTTP probe failed with statuscode: 500"},
		"/nil": {result: Failure, output: "HTTP probe failed with statuscode: 404"},
	} {
		if out := check(plain.URL, path); out != want {
			t.Errorf("%s: %+v", path, out)
		}
	}
	if out := check(plain.URL, "/near"); out.result != Success || out.warning {
		t.Errorf("%+v", out)
	}
	if out := check(plain.URL, "/far"); out.result != Success || !out.warning || !strings.HasPrefix(out.output, "Probe terminated redirects, Response body: ") {
		t.Errorf("%+v", out)
	}
	if out := check(plain.URL, "/round"); out.result != Failure || !strings.Contains(out.output, "stopped after 10 redirects") {
		t.Errorf("%+v", out)
	}
	if out := check(plain.URL, "/huge"); out.result != Success || len(out.output) != maxOutput {
		t.Errorf("%d bytes", len(out.output))
	}
	within = 300 * time.Millisecond
	if out := check(plain.URL, "/never"); out.result != Failure || !strings.Contains(out.output, "context deadline exceeded") {
		t.Errorf("%+v", out)
	}
}

// silent returns the port of a listener that accepts connections and never says a word.
func silent(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

func TestTCP(t *testing.T) {
	port := silent(t)
	if out := tcpCheck(t.Context(), "127.0.0.1", port, time.Minute); out.result != Success {
		t.Errorf("%+v", out)
	}
	if out := tcpCheck(t.Context(), "127.0.0.1", 1, time.Minute); out.result != Failure || out.output != "dial tcp 127.0.0.1:1: connect: connection refused" {
		t.Errorf("%+v", out)
	}
}

func TestGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, state := grpc.NewServer(), health.NewServer()
	healthpb.RegisterHealthServer(server, state)
	state.SetServingStatus("sick", healthpb.HealthCheckResponse_NOT_SERVING)
	go server.Serve(l)
	defer server.Stop()
	addr := l.Addr().String()
	for service, want := range map[string]string{
		"":     "service healthy",
		"sick": `service unhealthy (responded with "NOT_SERVING")`,
		"none": "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service",
	} {
		if out := grpcCheck(t.Context(), addr, service, time.Minute); out.output != want || (out.result == Success) != (service == "") {
			t.Errorf("%q: %+v", service, out)
		}
	}
	quiet := hostPort("127.0.0.1", silent(t))
	for _, addr := range []string{quiet, "127.0.0.1:1"} {
		out := grpcCheck(t.Context(), addr, "", 200*time.Millisecond)
		if want := fmt.Sprintf("timeout: failed to connect service %q within 200ms: context deadline exceeded", addr); out.result != Failure || out.output != want {
			t.Errorf("%+v", out)
		}
	}
}

func TestPorts(t *testing.T) {
	c := &v1.Container{Ports: []v1.ContainerPort{{Name: "web", ContainerPort: 80}}}
	for _, p := range []intstr.IntOrString{intstr.FromInt32(80), intstr.FromString("web"), intstr.FromString("80")} {
		if got, err := resolvePort(p, c); got != 80 || err != nil {
			t.Error(p, got, err)
		}
	}
	for _, p := range []intstr.IntOrString{intstr.FromInt32(0), intstr.FromInt32(70000), intstr.FromString("none")} {
		if _, err := resolvePort(p, c); err == nil {
			t.Error(p, "was taken")
		}
	}
}
