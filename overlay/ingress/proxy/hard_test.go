package proxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/overlay/ingress/plan"
	"github.com/balsahq/balsa/overlay/ingress/proxy"
)

func grpcCode(err error) string { return status.Code(err).String() }

// Of three endpoints one dies and one is taken out while requests are made: nobody notices.
func TestEndpointsComeAndGoUnderLoad(t *testing.T) {
	w := newWorld(t, nil)
	var servers []*httptest.Server
	var addrs []netip.AddrPort
	for i := range 3 {
		s := httptest.NewServer(says(fmt.Sprint(i)))
		t.Cleanup(s.Close)
		servers, addrs = append(servers, s), append(addrs, netip.MustParseAddrPort(s.Listener.Addr().String()))
	}
	w.service("a", "")
	w.ends["default/a"] = addrs
	w.ingress("one", "a.example.com", "/", "a", nil)
	w.apply()
	key := plan.Backend{Namespace: "default", Service: "a", Protocol: plan.HTTP}
	var by [3]atomic.Int64
	var done [6]atomic.Int64 // by client
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for i := range done {
		client := w.client(nil, false)
		load.Go(func() {
			for ctx.Err() == nil {
				resp, err := client.Get("http://a.example.com/")
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != 200 {
					t.Errorf("%d %q %v", resp.StatusCode, body, err)
					return
				}
				by[body[0]-'0'].Add(1)
				done[i].Add(1)
			}
		})
	}
	more := func(n int64) { // of each client, so that none is still about what it began before
		for i := range done {
			from := done[i].Load()
			eventually(t, "requests", func() bool { return done[i].Load() >= from+n || t.Failed() })
		}
	}
	more(50)
	servers[0].Config.SetKeepAlivesEnabled(false)
	servers[0].Listener.Close() // refuses from now on
	servers[0].CloseClientConnections()
	more(50)
	w.proxy.SetEndpoints(key, addrs[1:2])
	more(2)
	two := by[2].Load()
	more(50)
	if got := by[2].Load(); got != two {
		t.Errorf("an endpoint that is gone got %d requests", got-two)
	}
	w.proxy.SetEndpoints(key, addrs[1:])
	more(50)
	stop()
	load.Wait()
	if by[0].Load() == 0 || by[1].Load() == 0 || by[2].Load() == two {
		t.Errorf("requests by endpoint: %d %d %d", by[0].Load(), by[1].Load(), by[2].Load())
	}
}

func TestARefusedConnectionIsNoRefusedRequest(t *testing.T) {
	w := newWorld(t, nil)
	const dead = "127.0.0.1:1" // no port that the kernel would give to somebody meanwhile
	w.service("a", "", dead, backend(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })))
	w.ingress("one", "a.example.com", "/", "a", nil)
	w.apply()
	client := w.client(nil, false)
	for range 10 {
		resp, err := client.Post("http://a.example.com/", "text/plain", strings.NewReader("with a body"))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || string(body) != "with a body" {
			t.Fatalf("%d %q", resp.StatusCode, body)
		}
	}
}

func TestARequestThatWasSentIsNotSentTwice(t *testing.T) {
	w := newWorld(t, nil)
	var asked atomic.Int64
	breaks := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked.Add(1)
		panic(http.ErrAbortHandler)
	})
	w.service("a", "", backend(t, breaks), backend(t, breaks))
	w.ingress("one", "a.example.com", "/", "a", nil)
	w.apply()
	resp, err := w.client(nil, false).Post("http://a.example.com/", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 502 || asked.Load() != 1 {
		t.Errorf("status %d, asked %d times", resp.StatusCode, asked.Load())
	}
}

func TestBodiesAndTrailersStream(t *testing.T) {
	w := newWorld(t, nil)
	w.service("a", "", backend(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Trailer", "X-After")
		buf := make([]byte, 5)
		for {
			n, err := r.Body.Read(buf)
			_, _ = w.Write(buf[:n])
			w.(http.Flusher).Flush()
			if err != nil {
				break
			}
		}
		w.Header().Set("X-After", r.Trailer.Get("X-Sent-After"))
	})))
	w.ingress("one", "a.example.com", "/", "a", nil)
	w.apply()
	for _, h2 := range []bool{false, true} {
		in, out := io.Pipe()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://a.example.com/", in)
		req.Trailer = http.Header{"X-Sent-After": nil}
		go func() { _, _ = out.Write([]byte("first")) }()
		resp, err := w.client(nil, h2).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 5)
		if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != "first" {
			t.Fatalf("%q %v", buf, err)
		}
		_, _ = out.Write([]byte("again"))
		if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != "again" {
			t.Fatalf("%q %v", buf, err)
		}
		req.Trailer.Set("X-Sent-After", "yes")
		out.Close()
		if _, err := io.ReadAll(resp.Body); err != nil || resp.Trailer.Get("X-After") != "yes" {
			t.Errorf("trailers %v, %v", resp.Trailer, err)
		}
	}
}

func TestContinueAndHTTP10(t *testing.T) {
	w := newWorld(t, nil)
	w.service("a", "", backend(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })))
	w.ingress("one", "", "/", "a", nil)
	w.apply()
	reader, conn := raw(t, w.addr(httpPort), "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
	line, err := reader.ReadString('\n')
	if err != nil || !strings.Contains(line, " 100 ") {
		t.Fatalf("%q %v", line, err)
	}
	_, _ = io.WriteString(conn, "body")
	if rest, _ := io.ReadAll(reader); !bytes.Contains(rest, []byte(" 200 ")) || !bytes.HasSuffix(rest, []byte("body")) {
		t.Errorf("%q", rest)
	}
	reader, _ = raw(t, w.addr(httpPort), "POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\nold")
	if all, _ := io.ReadAll(reader); !bytes.HasPrefix(all, []byte("HTTP/1.0 200")) || !bytes.HasSuffix(all, []byte("old")) {
		t.Errorf("%q", all)
	}
}

// What two parsers could read differently is refused, or has one meaning when it is passed on.
func TestSmugglingIsRefused(t *testing.T) {
	w := newWorld(t, nil)
	var mu sync.Mutex
	var seen []string
	w.service("a", "", backend(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, fmt.Sprintf("%s %s %q %v", r.Method, r.URL.Path, body, r.Header["Content-Length"]))
	})))
	w.ingress("one", "", "/", "a", nil)
	w.apply()
	const inner = "GET /admin HTTP/1.1\r\nHost: a\r\n\r\n"
	for name, request := range map[string]string{
		"two lengths":          "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabcde",
		"a signed length":      "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc",
		"unknown coding":       "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"coding, odd spelling": "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\nContent-Length: 4\r\n\r\nabcd",
		"space before colon":   "POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 3\r\n\r\nabc",
		"two hosts":            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"host with a space":    "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
		"bare newline in path": "GET /a\nX: HTTP/1.1\r\nHost: a\r\n\r\n",
		"connect":              "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
		"asterisk":             "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
		"chunk extension":      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;a\nb\r\nabc\r\n0\r\n\r\n",
	} {
		reader, _ := raw(t, w.addr(httpPort), request)
		line, err := reader.ReadString('\n')
		if code := strings.Fields(line + " - -")[1]; err == nil && code[0] != '4' && code[0] != '5' {
			t.Errorf("%s: %q", name, line)
		}
	}
	mu.Lock()
	for _, s := range seen {
		if !strings.HasPrefix(s, "POST / ") { // a body that turns out to be malformed may have begun
			t.Errorf("the backend saw %s", s)
		}
	}
	mu.Unlock()
	reader, _ := raw(t, w.addr(httpPort), fmt.Sprintf("POST /last HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n%s", 5+len(inner), inner))
	_, _ = io.ReadAll(reader)
	mu.Lock()
	defer mu.Unlock()
	// The ends of the malformed bodies before may be seen late.
	seen = slices.DeleteFunc(seen, func(s string) bool { return strings.HasPrefix(s, "POST / ") })
	if len(seen) != 1 || !strings.HasPrefix(seen[0], `POST /last "" []`) {
		t.Errorf("length and coding: the backend saw %v", seen)
	}
}

// An answer that comes before the request has ended ends the connection: the rest of the body is no request.
func TestTheRestOfABodyIsNoRequest(t *testing.T) {
	w := newWorld(t, nil)
	w.service("a", "", backend(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.WriteString(w, "early "+r.URL.Path)
	})))
	w.ingress("one", "a", "/", "a", nil)
	w.apply()
	const inner = "GET /inner HTTP/1.1\r\nHost: a\r\n\r\n"
	for name, request := range map[string]string{
		"malformed chunk": "POST /outer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + inner,
		"in a body":       "POST /outer HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n" + inner,
		"no rule":         "POST /outer HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + inner,
	} {
		reader, conn := raw(t, w.addr(httpPort), request)
		_ = conn.(*net.TCPConn).CloseWrite()
		all, _ := io.ReadAll(reader)
		if n := bytes.Count(all, []byte("HTTP/1.1 ")); n != 1 || bytes.Contains(all, []byte("/inner")) {
			t.Errorf("%s: %d answers: %q", name, n, all)
		}
	}
}

func TestSlowClientsAreCutOff(t *testing.T) {
	const short = time.Second
	w := newWorld(t, func(c *proxy.Config) { c.HeaderTimeout, c.StallTimeout = short, short })
	silent := make(chan struct{})
	w.service("a", "", backend(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/silent":
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			<-silent
			_, _ = io.WriteString(w, "late")
		case "/endless":
			chunk := make([]byte, 1<<20)
			for {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		default:
			_, err := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, err)
		}
	})))
	w.ingress("one", "", "/", "a", nil)
	w.apply()
	for name, request := range map[string]string{
		"header":    "GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ",
		"handshake": "\x16\x03\x01",
		"upload":    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nfew",
	} {
		port := uint16(httpPort)
		if name == "handshake" {
			port = httpsPort
		}
		reader, _ := raw(t, w.addr(port), request)
		if _, err := io.ReadAll(reader); isTimeout(err) {
			t.Errorf("%s: the connection is still open", name)
		}
	}
	// One that does not read.
	_, conn := raw(t, w.addr(httpPort), "GET /endless HTTP/1.1\r\nHost: a\r\n\r\n")
	eventually(t, "a client that does not read is cut off", func() bool {
		_, err := conn.Write([]byte("x"))
		return err != nil
	})
	// A stream that is silent for longer than that goes on.
	go func() {
		<-time.After(2 * short)
		close(silent)
	}()
	if _, body := w.get("http://a/silent", nil); body != "late" {
		t.Errorf("a silent stream ended: %q", body)
	}
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

func TestConnectionsAreBounded(t *testing.T) {
	w := newWorld(t, func(c *proxy.Config) { c.MaxConnections = 8 })
	w.service("a", "", backend(t, says("a")))
	w.ingress("one", "", "/", "a", nil)
	w.apply()
	var conns []net.Conn
	for range 4 { // half is what one address may have
		_, c := raw(t, w.addr(httpPort), "")
		conns = append(conns, c)
	}
	reader, _ := raw(t, w.addr(httpPort), "GET / HTTP/1.0\r\n\r\n")
	if all, _ := io.ReadAll(reader); len(all) > 0 {
		t.Errorf("one too many is answered: %q", all)
	}
	conns[0].Close()
	eventually(t, "a place that is free again", func() bool {
		reader, c := raw(t, w.addr(httpPort), "GET / HTTP/1.0\r\n\r\n")
		defer c.Close()
		all, _ := io.ReadAll(reader)
		return bytes.HasSuffix(all, []byte("a"))
	})
}

func TestHeadersAreBounded(t *testing.T) {
	w := newWorld(t, nil)
	w.service("a", "", backend(t, says("a")))
	w.ingress("one", "", "/", "a", nil)
	w.apply()
	reader, _ := raw(t, w.addr(httpPort), "GET / HTTP/1.1\r\nHost: a\r\nX: "+strings.Repeat("x", 100<<10)+"\r\n\r\n")
	if line, _ := reader.ReadString('\n'); !strings.Contains(line, " 431 ") {
		t.Errorf("%q", line)
	}
}

func TestAPortThatCloses(t *testing.T) {
	w := newWorld(t, nil)
	begun, end := make(chan struct{}), make(chan struct{})
	w.service("a", "", backend(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-end
		_, _ = io.WriteString(w, "done")
	})))
	w.ingress("one", "", "/", "a", nil)
	w.apply()
	addr := w.addr(httpPort)
	reader, _ := raw(t, addr, "GET / HTTP/1.0\r\n\r\n")
	<-begun
	w.o.Ingresses = nil
	w.apply()
	if len(w.proxy.Listening()) != 0 {
		t.Error("ports stay open without an Ingress")
	}
	if conn, err := net.Dial("tcp", addr); err == nil {
		conn.Close()
		t.Error("the port takes connections")
	}
	close(end)
	if all, _ := io.ReadAll(reader); !bytes.HasSuffix(all, []byte("done")) {
		t.Errorf("the request under way was lost: %q", all)
	}
}

func TestAPortInUseIsSaidAndTriedAgain(t *testing.T) {
	var taken atomic.Bool
	taken.Store(true)
	w := newWorld(t, func(c *proxy.Config) {
		c.Listen = func(port uint16) (net.Listener, error) {
			if port == httpPort && taken.Load() {
				return nil, errors.New("address already in use")
			}
			return net.Listen("tcp", "127.0.0.1:0")
		}
	})
	w.service("a", "", backend(t, says("a")))
	w.ingress("one", "", "/", "a", nil)
	p := plan.Build(plan.Config{HTTPPort: httpPort, HTTPSPort: httpsPort}, w.o)
	if faults := w.proxy.Apply(p); len(faults) != 1 || faults[httpPort] == nil {
		t.Fatalf("faults: %v", faults)
	}
	taken.Store(false)
	if faults := w.proxy.Apply(p); len(faults) != 0 || len(w.proxy.Listening()) != 2 {
		t.Errorf("faults: %v, listening %v", faults, w.proxy.Listening())
	}
}
