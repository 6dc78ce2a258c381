package healthport

import (
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/net/netutil"

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

func listen(ns host.Namespace, port int32, h http.Handler) (*server, error) {
	var l net.Listener
	err := ns.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(int(port))))
		return err
	})
	if err != nil {
		return nil, err
	}
	s := &server{ended: make(chan struct{}), http: &http.Server{
		Handler: h, ReadTimeout: patience, ReadHeaderTimeout: patience, WriteTimeout: patience, IdleTimeout: 2 * patience, MaxHeaderBytes: mostHeader,
	}}
	go func() {
		defer close(s.ended)
		if err := s.http.Serve(netutil.LimitListener(l, mostConnections)); !errors.Is(err, http.ErrServerClosed) {
			l.Close()
		}
	}()
	return s, nil
}

// close cuts connections, and waits for the listener's goroutine.
func (s *server) close() {
	s.http.Close()
	<-s.ended
}
