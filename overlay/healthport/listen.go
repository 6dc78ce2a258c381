package healthport

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/overlay/host"
)

const (
	mostConnections = 64
	mostHeader      = 4 << 10
	patience        = 5 * time.Second
)

// server is one port that is listened on.
type server struct {
	http  *http.Server
	ended chan struct{}
}

// listen serves h at a host and a port of the namespace; the host 0.0.0.0 is every address of either family.
func listen(ns host.Namespace, address string, h http.Handler) (*server, error) {
	if port, all := strings.CutPrefix(address, "0.0.0.0:"); all {
		address = ":" + port
	}
	var l net.Listener
	err := ns.Do(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		return nil, err
	}
	s := &server{ended: make(chan struct{}), http: &http.Server{
		Handler: fault.Handler("overlay/healthport", h), ReadTimeout: patience, ReadHeaderTimeout: patience, WriteTimeout: patience, IdleTimeout: 2 * patience, MaxHeaderBytes: mostHeader,
	}}
	go fault.Contained("overlay/healthport", func() {
		defer close(s.ended)
		if err := s.http.Serve(netutil.LimitListener(l, mostConnections)); !errors.Is(err, http.ErrServerClosed) {
			l.Close()
		}
	})()
	return s, nil
}

// close cuts connections, and waits for the listener's goroutine.
func (s *server) close() {
	s.http.Close()
	<-s.ended
}
