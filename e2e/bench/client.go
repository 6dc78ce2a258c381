package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// client is one user of the API: an HTTP/2 connection of its own and no more
// work than it takes to send bytes and drop the answer. Answers are not
// compressed.
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

// request is one call; the body is in the encoding's form.
type request struct {
	method, path string
	body         []byte
}

// open sends a request and returns the answer's body, which the caller closes.
func (c *client) open(ctx context.Context, e *encoding, r request) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, c.base+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", e.mediaType)
	if len(r.body) > 0 {
		req.Header.Set("Content-Type", e.mediaType)
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
func (c *client) do(ctx context.Context, e *encoding, r request) error {
	body, err := c.open(ctx, e, r)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	return err
}

// encoding is a form in which objects travel.
type encoding struct {
	name, mediaType string
	serializer      runtime.Encoder
}

var encodings = []*encoding{
	{"JSON", runtime.ContentTypeJSON, json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{})},
	{"protobuf", runtime.ContentTypeProtobuf, protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)},
}

var filling = strings.Repeat("0123456789abcdef", 64) // 1 KiB

// stampKey is a ConfigMap's key that changes with every write.
const stampKey = "at"

// configMap is an object of 1 KiB and its metadata, encoded.
func (e *encoding) configMap(name, stamp string) []byte {
	var out bytes.Buffer
	err := e.serializer.Encode(&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Data:       map[string]string{stampKey: stamp, "filling": filling},
	}, &out)
	if err != nil {
		panic(err) // a buffer takes everything, and the kind is known
	}
	return out.Bytes()
}

func configMapsPath(namespace string) string {
	return "/api/v1/namespaces/" + namespace + "/configmaps"
}
