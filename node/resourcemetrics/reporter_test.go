package resourcemetrics

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/util/framer"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/balsahq/balsa/node/stats"
)

// running measures a node that uses one processor; while broken is set there is no answer.
func running(t *testing.T, broken *atomic.Bool) *Reporter {
	t.Helper()
	r, err := New(Config{NodeName: "n"})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- r.Run(ctx, func(context.Context) (stats.Usage, error) {
			if broken.Load() {
				return stats.Usage{}, errors.New("the runtime does not answer")
			}
			return stats.Usage{Node: &stats.Counter{At: time.Now(), CPU: uint64(time.Since(began))}}, nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// next reads one report of c and returns the node's part.
func next(t *testing.T, c net.Conn) (m metricsv1beta1.NodeMetrics) {
	t.Helper()
	frames := framer.NewLengthDelimitedFrameReader(c)
	for i, into := range []interface{ Unmarshal([]byte) error }{&m, &metricsv1beta1.PodMetricsList{}} {
		data := make([]byte, 1<<10)
		n, err := frames.Read(data)
		if err == nil {
			err = into.Unmarshal(data[:n])
		}
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	return m
}

func TestEachServerGetsTheNewestReportAtOnceAndThenEachOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, new(atomic.Bool))
		time.Sleep(6 * time.Second) // two samples, of which the second is a report with figures
		began := time.Now()
		for _, c := range []net.Conn{r.Connect(), r.Connect()} {
			if m := next(t, c); m.Usage.Cpu().String() != "1" || m.Window.Duration != firstInterval {
				t.Errorf("%v", m)
			}
			if waited := time.Since(began); waited != 0 {
				t.Errorf("waited %s for the newest", waited)
			}
		}
		c := r.Connect()
		for i := range 4 {
			m := next(t, c)
			if want := time.Duration(i) * DefaultInterval; i > 0 && (m.Window.Duration != DefaultInterval || time.Since(began) != want-time.Second) {
				t.Errorf("report %d: %v after %s, want %s", i, m, time.Since(began), want)
			}
		}
	})
}

func TestAnOldReportIsNotGivenToThoseWhoConnectWhenNothingCanBeMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		r := running(t, &broken)
		time.Sleep(6 * time.Second)
		broken.Store(true)
		time.Sleep(time.Minute)
		c, began := r.Connect(), time.Now()
		time.AfterFunc(time.Minute, func() { broken.Store(false) })
		if next(t, c); time.Since(began) < time.Minute {
			t.Errorf("a report after %s", time.Since(began))
		}
	})
}

func TestCloseEndsARead(t *testing.T) {
	r, err := New(Config{NodeName: "n"})
	if err != nil {
		t.Fatal(err)
	}
	c := r.Connect()
	time.AfterFunc(time.Millisecond, func() { _ = c.Close() })
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read %d bytes: %v", n, err)
	}
}
