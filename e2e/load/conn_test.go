package load

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/rest"
)

// TestConn: requests with and without bodies, answers of any size, refusals, and several answers at the same time.
func TestConn(t *testing.T) {
	large := bytes.Repeat([]byte("0123456789"), 50_000)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/echo":
			_, _ = io.Copy(w, r.Body)
		case "/large":
			_, _ = w.Write(large)
		case "/slow":
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			http.Error(w, "nothing here", http.StatusNotFound)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	c, err := Dial(context.Background(), &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	slow, err := c.Start(Request{Method: http.MethodGet, Path: "/slow"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 200 { // more bytes than the server's first window
		var got bytes.Buffer
		body := large[:1000]
		if err := c.Do(Request{Method: http.MethodPost, Path: "/echo", Type: "text/plain", Body: body}, collect(&got)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), body) {
			t.Fatalf("%q came back", got.Bytes())
		}
	}
	var got bytes.Buffer
	if err := c.Do(Request{Method: http.MethodGet, Path: "/large"}, collect(&got)); err != nil || !bytes.Equal(got.Bytes(), large) {
		t.Fatalf("%d bytes, %v", got.Len(), err)
	}
	var refused *StatusError
	if err := c.Do(Request{Method: http.MethodGet, Path: "/other"}, nil); !errors.As(err, &refused) || refused.Code != http.StatusNotFound {
		t.Fatal(err)
	}
	if slow.Status != http.StatusOK || slow.Ended {
		t.Fatal("the slow answer did not stay open beside the others")
	}
	if err := c.Cancel(slow); err != nil {
		t.Fatal(err)
	}
	if err := c.Do(Request{Method: http.MethodGet, Path: "/large"}, nil); err != nil {
		t.Fatal(err)
	}
}

func collect(into *bytes.Buffer) func([]byte) error {
	return func(b []byte) error {
		_, err := into.Write(b)
		return err
	}
}
