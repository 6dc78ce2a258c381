package servers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"
)

func (w *world) balancer(t testing.TB, change ...func(*BalancerConfig)) (addr string, stop func()) {
	t.Helper()
	cfg := BalancerConfig{Listener: listen(t), Set: w.set, Drain: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&cfg)
	}
	b, err := NewBalancer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return cfg.Listener.Addr().String(), stop
}

// through is a plain client that knows one address.
func (w *world) through(t testing.TB, addr string) *http.Client {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(w.ca.cert)
	_, _, pair := w.ca.leaf(t, "kubectl")
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
		TLSClientConfig:   &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}},
		ForceAttemptHTTP2: true,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

func get(t testing.TB, c *http.Client) string {
	t.Helper()
	res, err := c.Get("https://" + serverName + "/who")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestTheBalancerPassesTLSThroughToWhicheverServerLives(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Stagger, c.Attempt = time.Second, time.Hour })
	addr, _ := w.balancer(t)
	if got, want := get(t, w.through(t, addr)), w.apis[0].id+" kubectl 2"; got != want {
		t.Fatalf("%q, want %q", got, want)
	}
	w.apis[0].stop(true) // accepts and says nothing
	start := time.Now()
	if got, want := get(t, w.through(t, addr)), w.apis[1].id+" kubectl 2"; got != want {
		t.Fatalf("%q, want %q", got, want)
	}
	t.Logf("took %v", time.Since(start))
	w.apis[1].kill()
	if got, want := get(t, w.through(t, addr)), w.apis[2].id+" kubectl 2"; got != want {
		t.Fatalf("%q, want %q", got, want)
	}
}

func TestTheBalancerLetsGoWhenGossipSaysSo(t *testing.T) {
	w := newWorld(t)
	addr, _ := w.balancer(t)
	client := w.through(t, addr)
	res, err := client.Get("https://" + serverName + "/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	w.set.Drop(w.apis[0].server().Addr)
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Fatal("the stream ended well")
	}
}

func TestTheBalancerRefusesWhatIsNoTLS(t *testing.T) {
	w := newWorld(t)
	addr, _ := w.balancer(t, func(c *BalancerConfig) { c.Hello = 200 * time.Millisecond })
	for name, first := range map[string]string{"HTTP": "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "a length that lies": "\x16\x03\x01\xff\xff", "nothing": "", "half a hello": "\x16\x03\x01\x02\x00\x01"} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(c, first); err != nil {
			t.Fatal(err)
		}
		if answer, err := io.ReadAll(c); len(answer) > 0 || err != nil && !isReset(err) {
			t.Errorf("%s: answered %q, %v", name, answer, err)
		}
		c.Close()
	}
}

func isReset(err error) bool {
	var ne net.Error
	return !(asNetError(err, &ne) && ne.Timeout())
}

func asNetError(err error, to *net.Error) bool {
	ne, ok := err.(net.Error)
	*to = ne
	return ok
}

func TestTheBalancerIsBoundedAndDrains(t *testing.T) {
	w := newWorld(t)
	addr, stop := w.balancer(t, func(c *BalancerConfig) { c.MaxConns = 1 })
	res, err := w.through(t, addr).Get("https://" + serverName + "/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := w.through(t, addr).Get("https://" + serverName + "/who"); err == nil {
		t.Error("a second connection was served where one is allowed")
	}
	start := time.Now()
	stop()
	if took := time.Since(start); took > patience {
		t.Errorf("stopping took %v", took)
	}
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("the stream outlived the balancer")
	}
}
