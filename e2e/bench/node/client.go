package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/e2e/load"
)

// client is one user of the API: it has its own HTTP/2 connection, sends prepared bytes and drops the answers, to use
// little CPU. Answers are not compressed.
type client struct {
	base string
	http *http.Client
}

// newClients opens n connections as the administrator.
func newClients(cfg *rest.Config, n int) ([]*client, error) {
	out := make([]*client, n)
	for i := range out {
		tls, err := rest.TLSConfigFor(cfg)
		if err != nil {
			return nil, err
		}
		out[i] = &client{base: strings.TrimSuffix(cfg.Host, "/"), http: &http.Client{Transport: &http.Transport{
			TLSClientConfig: tls, DialContext: cfg.Dial, ForceAttemptHTTP2: true, DisableCompression: true,
		}}}
	}
	return out, nil
}

func closeClients(clients []*client) {
	for _, c := range clients {
		c.http.CloseIdleConnections()
	}
}

// request is one call; the body has the encoding's form.
type request struct {
	method, path string
	body         []byte
}

// open sends a request and returns the answer's body, which the caller closes.
func (c *client) open(ctx context.Context, e *load.Encoding, r request) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, c.base+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", e.MediaType)
	if len(r.body) > 0 {
		req.Header.Set("Content-Type", e.MediaType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		return nil, fmt.Errorf("%s %s: %s: %q", r.method, r.path, resp.Status, text)
	}
	return resp.Body, nil
}

// do sends a request and reads the answer to its end.
func (c *client) do(ctx context.Context, e *load.Encoding, r request) error {
	body, err := c.open(ctx, e, r)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	return err
}

// encodings are the encodings of objects.
var encodings = []*load.Encoding{load.JSON, load.Protobuf}
