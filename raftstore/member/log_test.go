package member

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestARefusalIsLoggedOncePerSourceAndMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := logger{slog.New(slog.NewTextHandler(&out, nil)), newLimiter()}.forMemberlist()
		lines := func() int { n := strings.Count(out.String(), "\n"); out.Reset(); return n }
		for i := range 1000 {
			l.Printf("[ERR] memberlist: Decrypt packet failed: no installed keys could decrypt the message from=10.0.0.%d:%d", i%2, 1000+i)
			l.Printf("[ERR] memberlist: discarding packet with unacceptable label %q: from=10.0.0.1:%d", fmt.Sprint("x", i), i)
		}
		if n := lines(); n != 3 {
			t.Errorf("%d lines for two sources and two kinds, want 3", n)
		}
		time.Sleep(logEvery)
		l.Printf("[ERR] memberlist: Decrypt packet failed: no installed keys could decrypt the message from=10.0.0.1:99")
		if s := out.String(); !strings.Contains(s, "more=499") || !strings.Contains(s, "from=10.0.0.1\x20") {
			t.Errorf("after a minute: %q", s)
		}
		lines()
		time.Sleep(logEvery)
		for i := range 100_000 {
			l.Printf("[ERR] memberlist: Decrypt packet failed: x from=10.%d.%d.%d:1", i>>16, i>>8&255, i&255)
		}
		if n := lines(); n > logSources+1 {
			t.Errorf("%d lines for a flood from many", n)
		}
	})
}

func TestLevelsOfMemberlist(t *testing.T) {
	for line, want := range map[string]slog.Level{
		"[ERR] memberlist: x": slog.LevelWarn, "[WARN] memberlist: x": slog.LevelInfo, "[DEBUG] memberlist: x": slog.LevelDebug, "x": slog.LevelDebug,
	} {
		if got, _ := cutLevel(line); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}
