package kubeletapi

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/counters"
)

// Limits on clients.
const (
	headerTimeout   = 10 * time.Second // to send a request's header
	responseTimeout = time.Minute      // to read an answer that is not a stream
	idleTimeout     = 90 * time.Second // between requests
	shutdownTimeout = 3 * time.Second  // to finish when the server stops
	maxHeader       = 64 << 10
	maxBody         = 1 << 20
)

// Server serves the kubelet's API.
type Server struct {
	cfg   Config
	log   *slog.Logger
	conns connSet
}

// New returns a Server for cfg. It starts nothing.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Counters == nil {
		cfg.Counters = counters.New()
	}
	return &Server{cfg: cfg, log: cfg.Logger, conns: connSet{open: map[net.Conn]bool{}}}, nil
}

// Handler returns the API with authentication and authorization in front of it.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	mux.HandleFunc("GET /healthz/ping", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	mux.HandleFunc("GET /pods", s.pods)
	mux.HandleFunc("GET /runningpods/", s.runningPods)
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.containerLogs)
	for _, method := range []string{"GET ", "POST "} {
		mux.HandleFunc(method+"/exec/{namespace}/{pod}/{container}", s.exec)
		mux.HandleFunc(method+"/exec/{namespace}/{pod}/{uid}/{container}", s.exec)
		mux.HandleFunc(method+"/attach/{namespace}/{pod}/{container}", s.attach)
		mux.HandleFunc(method+"/attach/{namespace}/{pod}/{uid}/{container}", s.attach)
		mux.HandleFunc(method+"/portForward/{namespace}/{pod}", s.portForward)
		mux.HandleFunc(method+"/portForward/{namespace}/{pod}/{uid}", s.portForward)
	}
	mux.HandleFunc("POST /run/{namespace}/{pod}/{container}", s.run)
	mux.HandleFunc("POST /run/{namespace}/{pod}/{uid}/{container}", s.run)
	mux.HandleFunc("GET /stats/summary", s.summary)
	mux.Handle("GET /metrics", promhttp.HandlerFor(prometheus.Gatherers{ownProcess{legacyregistry.DefaultGatherer}, s.cfg.Counters.Gatherer()}, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /metrics/resource", s.resourceMetrics)
	mux.HandleFunc("GET /metrics/cadvisor", s.cadvisorMetrics)
	mux.HandleFunc("GET /metrics/probes", s.probeMetrics)
	mux.HandleFunc("GET /configz", s.configz)
	if s.cfg.NodeLogs != nil {
		mux.Handle("GET /logs/", http.StripPrefix("/logs", s.cfg.NodeLogs))
	} else {
		mux.HandleFunc("/logs/", func(w http.ResponseWriter, _ *http.Request) {
			writeError(w, http.StatusMethodNotAllowed, "logs endpoint is disabled.")
		})
	}
	for path, h := range s.cfg.Debug {
		mux.Handle(path, h)
	}
	if s.cfg.NetCheck != nil {
		mux.Handle("POST /balsa/netcheck", s.cfg.NetCheck)
	}
	if s.cfg.LocalVolumes != nil {
		mux.Handle("POST /balsa/csi/{call}", s.cfg.LocalVolumes)
	}
	return fault.Handler("node/kubelet API", limited(s.authorized(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fault.Point("node/kubelet API")
		defer s.count(r, time.Now())
		mux.ServeHTTP(w, r)
	}))))
}

// limited bounds what a request may carry, how long it may take to send it and to read the answer. Streams set their
// own times; deadlines are properties of the connection, so they must take back those of an earlier request.
func limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control, soon := http.NewResponseController(w), time.Now().Add(responseTimeout)
		if r.Header.Get("Upgrade") != "" {
			_ = control.SetWriteDeadline(time.Time{})
		} else {
			_ = control.SetWriteDeadline(soon)
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
			if r.ContentLength != 0 {
				_ = control.SetReadDeadline(soon)
			}
		}
		next.ServeHTTP(w, r)
	})
}

// Run listens on Address and serves until ctx ends; then it closes every connection and waits for every request.
func (s *Server) Run(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("kubelet API: %w", err)
	}
	return s.Serve(ctx, listener)
}

// Serve is Run on a listener that it closes.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	if s.cfg.TLS == nil {
		listener.Close()
		return errors.New("kubelet API: TLS is not configured")
	}
	requests, cancel := context.WithCancel(ctx)
	defer cancel()
	var active sync.WaitGroup
	handler := s.Handler()
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			active.Add(1)
			defer active.Done()
			handler.ServeHTTP(w, r)
		}),
		TLSConfig:         s.cfg.TLS.Clone(),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	if server.TLSConfig.ClientAuth == tls.NoClientCert {
		server.TLSConfig.ClientAuth = tls.RequestClientCert
	}
	failed := make(chan error, 1)
	go func() {
		failed <- fault.Contain("node/kubelet API", func() error { return server.ServeTLS(&trackingListener{listener, &s.conns}, "", "") })
	}()
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
		stop, done := context.WithTimeout(context.Background(), shutdownTimeout)
		_ = server.Shutdown(stop)
		done()
		<-failed
	}
	cancel()
	_ = server.Close()
	s.conns.closeAll()
	active.Wait()
	return err
}

func (s *Server) pods(w http.ResponseWriter, _ *http.Request) { writePods(w, s.cfg.Backend.Pods()) }

func (s *Server) runningPods(w http.ResponseWriter, r *http.Request) {
	pods, err := s.cfg.Backend.RunningPods(r.Context())
	if err != nil {
		writeError(w, http.StatusInternalServerError, err.Error())
		return
	}
	writePods(w, pods)
}

func writePods(w http.ResponseWriter, pods []*v1.Pod) {
	list := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: make([]v1.Pod, 0, len(pods))}
	for _, p := range pods {
		list.Items = append(list.Items, *p)
	}
	writeJSON(w, &list)
}

func (s *Server) configz(w http.ResponseWriter, _ *http.Request) {
	config := s.cfg.Backend.Configz()
	if config == nil {
		config = struct{}{}
	}
	writeJSON(w, map[string]any{"kubeletconfig": config})
}

func writeJSON(w http.ResponseWriter, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		writeError(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data)
}

func writeError(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(message))
}

func writeErrorf(w http.ResponseWriter, code int, format string, args ...any) {
	writeError(w, code, fmt.Sprintf(format, args...))
}
