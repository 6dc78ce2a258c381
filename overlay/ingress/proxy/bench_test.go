package proxy_test

import (
	"io"
	"net/http"
	"syscall"
	"testing"
	"time"
)

// cpuTime is what this process has used: on a busy machine it says more than the time that passed.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRequests compares a request through the proxy with one that goes to the backend, over kept connections.
func BenchmarkRequests(b *testing.B) {
	w := newWorld(b, nil)
	addr := backend(b, says("a few bytes of an answer"))
	w.service("a", "", addr)
	w.ingress("one", "a.example.com", "/", "a", nil)
	w.apply()
	ask := func(b *testing.B, client *http.Client, url string) {
		before := cpuTime()
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
		b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N), "cpu-µs/op") // of client, proxy and backend
	}
	direct := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	b.Cleanup(direct.CloseIdleConnections)
	b.Run("direct", func(b *testing.B) { ask(b, direct, "http://"+addr+"/") })
	through := w.client(nil, false)
	b.Run("through", func(b *testing.B) { ask(b, through, "http://a.example.com/") })
}
