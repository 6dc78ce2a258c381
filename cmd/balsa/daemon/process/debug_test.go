package process

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balsahq/balsa/cmd/balsa/daemon/loglevel"
)

const someLog = `time=2026-01-01T10:00:00.000Z level=INFO msg=old
time=2026-01-01T11:00:00.000Z level=ERROR msg=panic
  a line of the stack
time=2026-01-01T12:00:00.000Z level=INFO msg=new
`

func TestALogIsShownSinceATime(t *testing.T) {
	at := func(text string) time.Time {
		when, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	for _, c := range []struct {
		since time.Time
		want  string
	}{
		{time.Time{}, someLog},
		{at("2026-01-01T10:30:00Z"), someLog[strings.Index(someLog, "time=2026-01-01T11"):]},
		{at("2026-01-01T13:00:00+01:00"), someLog[strings.Index(someLog, "time=2026-01-01T12"):]},
		{at("2026-01-02T00:00:00Z"), ""},
	} {
		var out bytes.Buffer
		if err := copyLog(t.Context(), &out, strings.NewReader(someLog), logQuery{since: c.since}); err != nil || out.String() != c.want {
			t.Errorf("since %s: %q, %v", c.since, out.String(), err)
		}
	}
	long := "time=2026-01-01T10:00:00Z " + strings.Repeat("x", 3*maxLogLine) + "\n"
	var out bytes.Buffer
	if err := copyLog(t.Context(), &out, strings.NewReader(long+someLog), logQuery{since: at("2026-01-01T11:30:00Z")}); err != nil || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("%.200q, %v", out.String(), err)
	}
}

func TestALogIsFollowed(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(name, []byte(someLog), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		done := make(chan error, 1)
		go func() { done <- copyLog(t.Context(), &out, f, logQuery{follow: true}) }()
		time.Sleep(time.Second)
		more, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = more.WriteString("more\n")
		more.Close()
		time.Sleep(time.Second)
		synctest.Wait()
		if out.String() != someLog+"more\n" {
			t.Errorf("%q", out.String())
		}
	})
}

func TestLevelsAreReadAndSet(t *testing.T) {
	setting, _ := loglevel.Parse("info")
	levels := loglevel.New(setting)
	h := DebugHandlers(levels, slog.New(slog.DiscardHandler))[PathLogLevel]
	for _, c := range []struct {
		method, body string
		code         int
		want         string
	}{
		{"GET", "", 200, "info"}, {"PUT", "loud", 400, "loud"}, {"GET", "", 200, "info"},
		{"PUT", "warn,overlay=debug\n", 200, "warn,overlay=debug"}, {"GET", "", 200, "warn,overlay=debug"}, {"POST", "info", 405, ""},
		{"PUT", strings.Repeat("a", 1<<20), 400, "too large"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c.method, PathLogLevel, strings.NewReader(c.body)))
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %.30q: %d %.80q, want %d %q", c.method, c.body, w.Code, w.Body, c.code, c.want)
		}
	}
	if levels.Get().Of("overlay/nft") != slog.LevelDebug {
		t.Error("the level did not change")
	}
	w := httptest.NewRecorder()
	DebugHandlers(levels, slog.Default())[PathGoroutines].ServeHTTP(w, httptest.NewRequest(http.MethodGet, PathGoroutines, nil))
	if !strings.Contains(w.Body.String(), "TestLevelsAreReadAndSet") {
		t.Errorf("%.200s", w.Body)
	}
}
