package control

import (
	"cmp"
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
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sync/errgroup"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/raftstore/peer"
)

// drain is how long requests in progress may take to finish when the server stops.
const drain = 2 * time.Second

func addrPort(a netip.Addr, port int) string { return net.JoinHostPort(a.String(), strconv.Itoa(port)) }

// Run serves until ctx ends, then lets requests in progress finish for a moment, ends all others, and returns when no
// handler runs any more. It returns nil after ctx has ended. Without a quorum it serves what needs none and waits. A
// server runs once.
func (s *Server) Run(ctx context.Context) error {
	defer s.close()
	if err := s.auditor.Start(); err != nil {
		return fmt.Errorf("control: audit: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	if err := s.encryption.Start(ctx); err != nil {
		return fmt.Errorf("control: %w", err)
	}
	for _, part := range []func(context.Context) error{s.access.authn.Run, s.access.authz.Run, s.runPriorityAndFairness, s.encryption.Run, s.aggregation.Run, s.publishTrust} {
		group.Go(func() error { return fault.Keep(ctx, "control", part) })
	}
	if listener := cmp.Or(s.cfg.Listener, s.cfg.Secure); listener != nil {
		web, err := s.newHTTPServer()
		if err != nil {
			_ = listener.Close()
			return fmt.Errorf("control: %w", err)
		}
		group.Go(fault.ContainedErr("control", func() error {
			var err error
			if s.cfg.Secure != nil {
				err = web.Serve(listener)
			} else {
				err = web.ServeTLS(listener, "", "")
			}
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return fmt.Errorf("control: serve: %w", err)
		}))
		group.Go(fault.ContainedErr("control/serve", func() error {
			<-ctx.Done()
			s.drain(web)
			return nil
		}))
	}
	group.Go(func() error {
		fault.KeepDo(ctx, "control", s.runStartup)
		<-ctx.Done()
		return nil
	})
	return group.Wait()
}

// entryHandler returns the outermost handler of a connection's requests.
func (s *Server) entryHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer.Began(r.Context())
		defer peer.Ended(r.Context())
		if s.cfg.GRPC != nil && r.ProtoMajor == 2 && isGRPC(r.Header.Get("Content-Type")) {
			s.cfg.GRPC.ServeHTTP(w, r)
			return
		}
		s.handler.ServeHTTP(w, r)
	})
}

// isGRPC: application/grpc, alone or with +subtype or ;parameters; grpc-web is another protocol.
func isGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// newHTTPServer returns the HTTPS server.
func (s *Server) newHTTPServer() (*http.Server, error) {
	leaf, hint := s.cfg.PKI.Serving(), s.cfg.PKI.Pool()
	if s.cfg.ClientCAs != nil {
		hint = nil // others may come: clients choose by themselves which certificate they show
	}
	web := &http.Server{
		Handler: s.entryHandler(),
		TLSConfig: &tls.Config{
			MinVersion:     tls.VersionTLS12,
			NextProtos:     []string{"h2", "http/1.1"},
			GetCertificate: leaf.GetCertificate,
			// Certificates are verified by the authenticator: a client without a valid one may still have a token.
			ClientAuth: tls.RequestClientCert,
			ClientCAs:  hint,
		},
		ReadHeaderTimeout: 32 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    1 << 20,
		ErrorLog:          log.New(httpLogWriter{s.log}, "", 0),
		BaseContext:       func(net.Listener) context.Context { return s.stopping },
		ConnContext:       peer.ConnContext,
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
	go func() { done <- fault.Contain("control/serve", func() error { return web.Shutdown(short) }) }()
	s.stop() // watches and streams end now; their connections become idle and close
	if err := <-done; err != nil {
		s.log.Warn("cutting off clients that did not finish", "err", err)
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
	s.auditor.Stop()
	s.extensions.Informers.Shutdown()
	s.access.admission.Stop()
	s.docs.Drop()
	s.fastReader.Close()
	s.generic.Destroy()
	s.set.Destroy()
}

// httpLogWriter writes what net/http logs at debug level: handshakes that failed are the client's affair.
type httpLogWriter struct{ log *slog.Logger }

// Write implements io.Writer.
func (l httpLogWriter) Write(p []byte) (int, error) {
	l.log.Debug("http", "message", string(p))
	return len(p), nil
}
