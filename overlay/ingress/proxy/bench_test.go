package proxy_test

import (
	"io"
	"net/http"
	"testing"
)

// BenchmarkRequests compares a request through the proxy with one that goes to the backend, over kept connections.
func BenchmarkRequests(b *testing.B) {
	w := newWorld(b, nil)
	addr := backend(b, says("a few bytes of an answer"))
	w.service("a", "", addr)
	w.ingress("one", "a.example.com", "/", "a", nil)
	w.apply()
	ask := func(b *testing.B, client *http.Client, url string) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				resp, err := client.Get(url)
				if err != nil {
					b.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
	}
	direct := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	b.Cleanup(direct.CloseIdleConnections)
	b.Run("direct", func(b *testing.B) { ask(b, direct, "http://"+addr+"/") })
	through := w.client(nil, false)
	b.Run("through", func(b *testing.B) { ask(b, through, "http://a.example.com/") })
}
