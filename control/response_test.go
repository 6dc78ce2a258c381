package control

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
)

func TestHandlerWaitsForASlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResponse(func() {})
		var wrote int
		done := make(chan error)
		go func() {
			var err error
			for range 64 {
				var n int
				if n, err = r.Write(make([]byte, 64<<10)); err != nil {
					break
				}
				wrote += n
			}
			r.finish(nil)
			done <- err
		}()
		synctest.Wait()
		if wrote < highWater || wrote > highWater+128<<10 {
			t.Errorf("handler wrote %d bytes ahead, want about %d", wrote, highWater)
		}
		read, err := io.Copy(io.Discard, r)
		if err != nil || read != 4<<20 {
			t.Errorf("read %d bytes, %v", read, err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestClosingTheBodyEndsTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := newResponse(cancel)
		failed := make(chan error)
		go func() {
			var err error
			for err == nil && ctx.Err() == nil {
				_, err = r.Write(make([]byte, 256<<10))
			}
			failed <- err // nobody reads: that is no fault of the handler's
		}()
		synctest.Wait()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-failed; err != nil {
			t.Errorf("write to a closed body: %v", err)
		}
		if ctx.Err() == nil {
			t.Error("the handler's context goes on")
		}
		if _, err := r.Read(make([]byte, 1)); err == nil {
			t.Error("a closed body was read")
		}
	})
}

func TestHeaderIsFixedByTheFirstWrite(t *testing.T) {
	r := newResponse(func() {})
	r.Header().Set("A", "1")
	r.WriteHeader(http.StatusProcessing) // informational: more follows
	r.WriteHeader(http.StatusTeapot)
	r.Header().Set("A", "2")
	r.WriteHeader(http.StatusOK)
	if _, err := r.Write([]byte("body")); err != nil {
		t.Fatal(err)
	}
	r.finish(nil)
	res := r.response(&http.Request{})
	body, err := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusTeapot || res.Header.Get("A") != "1" || !bytes.Equal(body, []byte("body")) || err != nil {
		t.Errorf("%d %v %q %v", res.StatusCode, res.Header, body, err)
	}
}

func TestBrokenHandlerBreaksTheBody(t *testing.T) {
	r := newResponse(func() {})
	if _, err := r.Write([]byte("part")); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	r.finish(broken)
	if body, err := io.ReadAll(r.response(&http.Request{}).Body); string(body) != "part" || !errors.Is(err, broken) {
		t.Errorf("%q, %v", body, err)
	}
	r = newResponse(func() {})
	r.finish(broken)
	if r.response(&http.Request{}).StatusCode != http.StatusInternalServerError {
		t.Error("a handler that broke before it answered has answered")
	}
}
