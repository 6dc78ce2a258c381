package cork_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"github.com/balsahq/balsa/control/cork"
)

// counted counts what its connections write, and in how many calls.
type counted struct {
	net.Listener
	calls, bytes atomic.Int64
}

func (c *counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	return countedConn{conn, c}, err
}

type countedConn struct {
	net.Conn
	of *counted
}

func (c countedConn) Write(b []byte) (int, error) {
	c.of.calls.Add(1)
	c.of.bytes.Add(int64(len(b)))
	return c.Conn.Write(b)
}

// serve answers on loopback; the client has windows of so many bytes for a stream.
func serve(t *testing.T, handler http.Handler, corked bool, window int32) (*http.Client, string, *counted) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	counts := &counted{Listener: l}
	certificates := httptest.NewTLSServer(nil)
	t.Cleanup(certificates.Close)
	web := &http.Server{Handler: handler, TLSConfig: &tls.Config{NextProtos: []string{"h2", "http/1.1"}, Certificates: certificates.TLS.Certificates}}
	if err := cork.Configure(web, &http2.Server{MaxConcurrentStreams: 250}); err != nil {
		t.Fatal(err)
	}
	var listener net.Listener = counts
	if corked {
		listener = cork.Listener{Listener: counts}
	}
	done := make(chan error, 1)
	go func() { done <- web.ServeTLS(listener, "", "") }()
	transport := &http.Transport{
		TLSClientConfig: certificates.Client().Transport.(*http.Transport).TLSClientConfig.Clone(), ForceAttemptHTTP2: true,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: int(window), MaxReceiveBufferPerConnection: 4 * int(window)},
	}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = web.Close()
		<-done
	})
	return &http.Client{Transport: transport}, "https://" + l.Addr().String(), counts
}

// pattern is what stream n is answered with: it shows what is lost, twice or in a wrong place.
func pattern(n, size int) []byte {
	b := make([]byte, 0, size+16)
	for i := 0; len(b) < size; i++ {
		b = fmt.Appendf(b, "%d.%d,", n, i)
	}
	return b[:size]
}

func get(ctx context.Context, c *http.Client, url string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return c.Do(r)
}

// TestALongAnswerGoesOutInFewCalls and is what was written.
func TestALongAnswerGoesOutInFewCalls(t *testing.T) {
	body := pattern(1, 8<<20)
	calls := map[bool]int64{}
	for _, corked := range []bool{false, true} {
		client, url, counts := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for rest := body; len(rest) > 0; {
				n := min(len(rest), 64<<10)
				_, _ = w.Write(rest[:n])
				rest = rest[n:]
			}
		}), corked, 16<<20)
		resp, err := get(t.Context(), client, url)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !bytes.Equal(got, body) || resp.ProtoMajor != 2 {
			t.Fatalf("%d bytes by %s, %v", len(got), resp.Proto, err)
		}
		calls[corked] = counts.calls.Load()
	}
	if calls[true] > calls[false]/6 {
		t.Errorf("%d calls, without %d", calls[true], calls[false])
	}
}

// TestNothingStaysBehind: streams that end, streams that are cut off by their client and streams whose window is full share
// connections, with every size of answer; each answer arrives whole, though nothing is sent after it.
func TestNothingStaysBehind(t *testing.T) {
	sizes := []int{0, 1, 100, 4 << 10, 16 << 10, 16<<10 + 1, 100 << 10}
	client, url, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var n, piece int
		_, _ = fmt.Sscanf(r.URL.Path, "/%d/%d", &n, &piece)
		for rest := pattern(n, sizes[n%len(sizes)]); len(rest) > 0; {
			k := min(len(rest), piece)
			if _, err := w.Write(rest[:k]); err != nil {
				return
			}
			if n%3 == 0 {
				w.(http.Flusher).Flush()
			}
			rest = rest[k:]
		}
	}), true, 64<<10)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := range 20 {
				n := worker*20 + i
				resp, err := get(ctx, client, fmt.Sprintf("%s/%d/%d", url, n, []int{700, 4096, 64 << 10}[i%3]))
				if err != nil {
					t.Error(err)
					return
				}
				if i%7 == 6 { // goes away in the middle
					_, _ = io.CopyN(io.Discard, resp.Body, 10)
					_ = resp.Body.Close()
					continue
				}
				got, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if want := pattern(n, sizes[n%len(sizes)]); err != nil || !bytes.Equal(got, want) {
					t.Errorf("answer %d: %d bytes of %d, %v", n, len(got), len(want), err)
					return
				}
			}
		})
	}
	all.Wait()
}

// TestAnEventArrivesThoughAnotherStreamIsFull: one client does not read, which holds nobody's event back.
func TestAnEventArrivesThoughAnotherStreamIsFull(t *testing.T) {
	events := make(chan string)
	client, url, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/full" {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
			return
		}
		w.(http.Flusher).Flush()
		for e := range events {
			_, _ = io.WriteString(w, e)
			w.(http.Flusher).Flush()
		}
	}), true, 256<<10)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	full, err := get(ctx, client, url+"/full")
	if err != nil {
		t.Fatal(err)
	}
	defer full.Body.Close()
	watch, err := get(ctx, client, url+"/events")
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Body.Close()
	defer close(events)
	for i := range 200 {
		e := fmt.Sprintf("event %03d", i)
		events <- e
		got := make([]byte, len(e))
		if _, err := io.ReadFull(watch.Body, got); err != nil || string(got) != e {
			t.Fatalf("%q, %v", got, err)
		}
	}
}

// patience is how long anything may take that only happens.
const patience = 30e9
