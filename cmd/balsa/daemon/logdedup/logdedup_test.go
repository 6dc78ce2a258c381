package logdedup

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func logger(out *output) *slog.Logger {
	return slog.New(New(slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})))
}

// output is what was logged; timers write to it too.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (o *output) Reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Reset()
}

func lines(out *output) []string {
	return strings.Split(strings.TrimSpace(out.String()), "\n")
}

func TestAWarningThatRepeatsIsWrittenOnceWithACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		log := logger(&out).With("controller", "c")
		for i := range 300 {
			log.Warn("cannot write", "node", "n1", "err", fmt.Errorf("no %032x", 1<<40+i), "took", i)
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		log.Warn("cannot write", "node", "n2", "err", errors.New("no"))
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []string{
			`level=WARN msg="cannot write" controller=c node=n1 err="no 00000000000000000000010000000000" took=0`,
			`level=WARN msg="cannot write" controller=c node=n1 err="no 0000000000000000000001000000012b" took=299 repeated=299 within=5m0s`,
			`level=WARN msg="cannot write" controller=c node=n2 err=no`,
		}
		if got := lines(&out); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestWindowsGrowAndEndWithSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		log := logger(&out)
		for range 24 * 60 { // a retry a minute for a day
			log.Error("down", "err", "x")
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		if n := len(lines(&out)); n < 20 || n > 30 {
			t.Errorf("%d lines in a day, want one an hour and a few", n)
		}
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		out.Reset()
		log.Error("down", "err", "x")
		if got := lines(&out); len(got) != 1 || strings.Contains(got[0], "repeated") {
			t.Errorf("after a silence: %q", got)
		}
	})
}

func TestAMessageAboutManyObjectsHasABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		log := logger(&out)
		for range 12 {
			for n := range 4700 {
				log.Warn("no address range is left", "node", n)
			}
			time.Sleep(20 * time.Second)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := len(lines(&out)); n > 3*budget {
			t.Errorf("%d lines for %d records", n, 12*4700)
		}
		if !strings.Contains(out.String(), `msg="no address range is left" repeated=`) {
			t.Error("nothing was counted")
		}
	})
}

func TestInfoPassesAndMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		h := New(slog.NewTextHandler(&out, nil))
		log := slog.New(h)
		for range 10 {
			log.Info("something happened")
		}
		if n := len(lines(&out)); n != 10 {
			t.Errorf("%d of 10 lines", n)
		}
		for i := range 3 * mostKeys {
			log.Warn(fmt.Sprint("message ", i))
		}
		h.state.mu.Lock()
		defer h.state.mu.Unlock()
		if k, m := len(h.state.keys), len(h.state.messages); k > mostKeys || m > mostKeys {
			t.Errorf("%d keys and %d messages are remembered", k, m)
		}
	})
}
