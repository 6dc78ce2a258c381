package host

import (
	"context"
	"net"
	"net/http"
	"runtime"
	"time"

	"github.com/vishvananda/netns"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Dial connects from this host.
func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		// The thread is never unlocked: it ends with the goroutine, in its namespace.
		runtime.LockOSThread()
		ns, err := netns.GetFromName(h.Name)
		if err != nil {
			done <- result{err: err}
			return
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			done <- result{err: err}
			return
		}
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, network, address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

// HTTP returns a client on this host that opens a connection for each request, so that each request meets the Service
// rules of its moment.
func (h *Host) HTTP() *http.Client {
	return &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{DialContext: h.Dial, DisableKeepAlives: true},
	}
}

// RESTConfig returns the administrator's configuration for the API of this host.
func (h *Host) RESTConfig() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", h.Kubeconfig())
	if err != nil {
		return nil, err
	}
	cfg.Dial = h.Dial
	cfg.QPS, cfg.Burst = -1, -1
	return cfg, nil
}

// Listen opens a listener on this host.
func (h *Host) Listen(network, address string) (net.Listener, error) {
	type result struct {
		listener net.Listener
		err      error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // as in Dial
		ns, err := netns.GetFromName(h.Name)
		if err != nil {
			done <- result{err: err}
			return
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			done <- result{err: err}
			return
		}
		l, err := net.Listen(network, address)
		done <- result{l, err}
	}()
	r := <-done
	return r.listener, r.err
}
