package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sync/errgroup"

	"github.com/balsahq/balsa/control/auth/bootstrap"
)

// drain is how long requests in progress may take to finish when the server stops.
const drain = 2 * time.Second

func addrPort(a netip.Addr, port int) string { return net.JoinHostPort(a.String(), strconv.Itoa(port)) }

// Run serves until ctx ends, then lets requests in progress finish for a moment, ends all others, and returns when no
// handler runs any more. It returns nil after ctx has ended. A server runs once.
func (s *Server) Run(ctx context.Context) error {
	defer s.close()
	group, ctx := errgroup.WithContext(ctx)
	if s.cfg.Listener != nil {
		web, err := s.web()
		if err != nil {
			_ = s.cfg.Listener.Close()
			return fmt.Errorf("control: %w", err)
		}
		group.Go(func() error {
			err := web.ServeTLS(s.cfg.Listener, "", "")
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return fmt.Errorf("control: serve: %w", err)
		})
		group.Go(func() error {
			<-ctx.Done()
			s.drain(web)
			return nil
		})
	}
	group.Go(func() error {
		if err := s.settle(ctx); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
	return group.Wait()
}

// settle writes the default objects, says the server is ready, and then brings roles of an older version up to date.
func (s *Server) settle(ctx context.Context) error {
	// Definitions of custom resources first: the hooks look whether they are there once and then every 100 ms.
	s.extensions.Informers.Start(ctx.Done())
	if !await(ctx, s.extensions.Informers.Apiextensions().V1().CustomResourceDefinitions().Informer().HasSynced) {
		return nil
	}
	s.generic.RunPostStartHooks(ctx)
	if err := s.ensureDefaults(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // stopped before it was done
		}
		return fmt.Errorf("control: default objects: %w", err)
	}
	if !await(ctx, func() bool { return s.othersReady(ctx) }) {
		return nil
	}
	close(s.ready)
	s.log.Info("API server is ready", "address", s.address(), "version", gitVersion)
	if err := bootstrap.EnsureRBAC(ctx, s.client, bootstrap.Default()); err != nil && ctx.Err() == nil {
		s.log.Error("some default roles are not up to date", "error", err)
	}
	return nil
}

// othersReady tells whether everything but the default objects is ready.
func (s *Server) othersReady(ctx context.Context) bool {
	code := 0
	s.client.Discovery().RESTClient().Get().AbsPath("/readyz").Param("exclude", "default-objects").Do(ctx).StatusCode(&code)
	return code == http.StatusOK
}

// startPoll is how often await looks.
const startPoll = 2 * time.Millisecond

// await waits until cond holds; false when ctx has ended first.
func await(ctx context.Context, cond func() bool) bool {
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// web is the HTTPS server.
func (s *Server) web() (*http.Server, error) {
	leaf := s.cfg.PKI.Serving()
	web := &http.Server{
		Handler: s.handler,
		TLSConfig: &tls.Config{
			MinVersion:     tls.VersionTLS12,
			NextProtos:     []string{"h2", "http/1.1"},
			GetCertificate: leaf.GetCertificate,
			// Certificates are verified by the authenticator: a client without a valid one may still have a token.
			ClientAuth: tls.RequestClientCert,
			ClientCAs:  s.cfg.PKI.Pool(),
		},
		ReadHeaderTimeout: 32 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    1 << 20,
		ErrorLog:          log.New(lines{s.log}, "", 0),
		BaseContext:       func(net.Listener) context.Context { return s.stopping },
	}
	return web, http2.ConfigureServer(web, &http2.Server{
		MaxConcurrentStreams: 250, IdleTimeout: 90 * time.Second, ReadIdleTimeout: 30 * time.Second,
		MaxUploadBufferPerStream: 256 << 10, MaxReadFrameSize: 256 << 10, MaxUploadBufferPerConnection: 2 << 20,
	})
}

// drain ends the HTTP server: short requests finish, long ones are cut.
func (s *Server) drain(web *http.Server) {
	short, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- web.Shutdown(short) }()
	s.stop() // watches and streams end now; their connections become idle and close
	if err := <-done; err != nil {
		s.log.Warn("cutting off clients that did not finish", "error", err)
		_ = web.Close()
	}
}

// close refuses in-process requests and waits for the last one.
func (s *Server) close() {
	s.entry.Lock()
	s.refusing = true
	s.entry.Unlock()
	s.stop()
	s.inflight.Wait()
	s.extensions.Informers.Shutdown()
	s.guard.admission.Stop()
	s.docs.Drop()
	s.generic.Destroy()
	s.set.Destroy()
}

// lines writes what net/http logs at debug level: handshakes that failed are the client's affair.
type lines struct{ log *slog.Logger }

// Write implements io.Writer.
func (l lines) Write(p []byte) (int, error) {
	l.log.Debug("http", "message", string(p))
	return len(p), nil
}
