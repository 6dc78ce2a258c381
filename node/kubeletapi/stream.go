package kubeletapi

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/httpstream/wsstream"
	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// streams says which standard streams of a command a client wants.
type streams struct{ stdin, stdout, stderr, tty bool }

func parseStreams(q url.Values) (streams, error) {
	is := func(name string) bool { return q.Get(name) == "1" || q.Get(name) == "true" }
	s := streams{stdin: is("input"), stdout: is("output"), stderr: is("error"), tty: is("tty")}
	if s.tty {
		s.stderr = false // a terminal has one output
	}
	if !s.stdin && !s.stdout && !s.stderr {
		return s, errors.New("you must specify at least 1 of stdin, stdout, stderr")
	}
	return s, nil
}

// pod returns the pod that the request's path names.
func (s *Server) pod(w http.ResponseWriter, r *http.Request) (*v1.Pod, bool) {
	pod, ok := s.cfg.Backend.Pod(r.PathValue("namespace"), r.PathValue("pod"))
	if !ok {
		writeError(w, http.StatusNotFound, "pod does not exist")
		return nil, false
	}
	if uid := r.PathValue("uid"); uid != "" && pod.UID != types.UID(uid) {
		writeError(w, http.StatusNotFound, "pod not found")
		return nil, false
	}
	return pod, true
}

// runningID returns the id of the newest container of that name.
func runningID(pod *v1.Pod, container string) (string, error) {
	st := containerStatus(pod, container)
	if st == nil || st.ContainerID == "" {
		return "", fmt.Errorf("container not found (%q)", container)
	}
	return bareID(st.ContainerID), nil
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	want, err := parseStreams(r.URL.Query())
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	pod, ok := s.pod(w, r)
	if !ok {
		return
	}
	id, err := runningID(pod, r.PathValue("container"))
	if err != nil {
		writeRuntimeError(w, err)
		return
	}
	res, err := s.cfg.Backend.Runtime().Exec(r.Context(), &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: r.URL.Query()["command"],
		Stdin: want.stdin, Stdout: want.stdout, Stderr: want.stderr, Tty: want.tty,
	})
	s.passThrough(w, r, res.GetUrl(), err, &want)
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	want, err := parseStreams(r.URL.Query())
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	pod, ok := s.pod(w, r)
	if !ok {
		return
	}
	id, err := runningID(pod, r.PathValue("container"))
	if err != nil {
		writeRuntimeError(w, err)
		return
	}
	_, tty := containerSpec(pod, r.PathValue("container")) // whether a running process has a terminal is settled
	want.tty = tty
	want.stderr = want.stderr && !tty
	res, err := s.cfg.Backend.Runtime().Attach(r.Context(), &runtimeapi.AttachRequest{
		ContainerId: id, Stdin: want.stdin, Stdout: want.stdout, Stderr: want.stderr, Tty: want.tty,
	})
	s.passThrough(w, r, res.GetUrl(), err, &want)
}

// passThrough joins the client's upgraded connection with the one to the URL that the runtime gave.
func (s *Server) passThrough(w http.ResponseWriter, r *http.Request, target string, err error, want *streams) {
	if err != nil {
		writeRuntimeError(w, err)
		return
	}
	u, err := url.Parse(target)
	if err != nil || u.Host == "" {
		writeErrorf(w, http.StatusInternalServerError, "the runtime gave no streaming address: %q", target)
		return
	}
	if want != nil && wsstream.IsWebSocketRequestWithStreamCloseProtocol(r) {
		translator.NewStreamTranslatorHandler(u, nil, 0, translator.Options{
			Stdin: want.stdin, Stdout: want.stdout, Stderr: want.stderr, Tty: want.tty,
		}).ServeHTTP(w, r)
		return
	}
	var handler http.Handler = proxy.NewUpgradeAwareHandler(u, nil, false, true, responder{s})
	if want == nil && wsstream.IsWebSocketRequestWithTunnelingProtocol(r) {
		handler = translator.NewTunnelingHandler(handler)
	}
	handler.ServeHTTP(w, r)
}

// responder reports what goes wrong between this server and the runtime's.
type responder struct{ s *Server }

// Error is part of proxy.ErrorResponder.
func (e responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	e.s.log.Info("streaming from the container runtime failed", "err", err)
	writeError(w, http.StatusInternalServerError, err.Error())
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	var ports []int32
	if !wsstream.IsWebSocketRequestWithTunnelingProtocol(r) && wsstream.IsWebSocketRequest(r) {
		var err error
		if ports, err = parsePorts(r.URL.Query()["port"]); err != nil {
			writeError(w, http.StatusBadRequest, err.Error())
			return
		}
	}
	pod, ok := s.pod(w, r)
	if !ok {
		return
	}
	sandbox, ok := s.cfg.Backend.SandboxID(pod.UID)
	if !ok {
		writeErrorf(w, http.StatusInternalServerError, "failed to find sandboxID for pod %s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
		return
	}
	res, err := s.cfg.Backend.Runtime().PortForward(r.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: sandbox, Port: ports})
	s.passThrough(w, r, res.GetUrl(), err, nil)
}

// parsePorts reads the ports that a WebSocket client names in its query.
func parsePorts(values []string) ([]int32, error) {
	if len(values) == 0 {
		return nil, errors.New(`query parameter "port" is required`)
	}
	var out []int32
	for _, v := range values {
		for _, text := range strings.Split(v, ",") {
			n, err := strconv.ParseUint(text, 10, 16)
			if err != nil || n == 0 {
				return nil, fmt.Errorf("unable to parse %q as a port", v)
			}
			out = append(out, int32(n))
		}
	}
	return out, nil
}

// runTimeout bounds a command of /run, whose output is kept in memory until it ends.
const runTimeout = 2 * time.Minute

func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	pod, ok := s.pod(w, r)
	if !ok {
		return
	}
	id, err := runningID(pod, r.PathValue("container"))
	if err != nil {
		writeRuntimeError(w, err)
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(runTimeout + responseTimeout))
	stdout, stderr, err := s.cfg.Backend.Runtime().ExecSync(r.Context(), id, strings.Split(r.FormValue("cmd"), " "), runTimeout)
	if err != nil {
		writeRuntimeError(w, err)
		return
	}
	_, _ = w.Write(append(stdout, stderr...))
}

// writeRuntimeError answers with the status that fits an error of the runtime.
func writeRuntimeError(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	switch status.Code(err) {
	case codes.NotFound:
		code = http.StatusNotFound
	case codes.ResourceExhausted:
		w.Header().Set("Retry-After", "1")
		code = http.StatusTooManyRequests
	}
	writeError(w, code, err.Error())
}
