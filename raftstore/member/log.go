package member

import (
	"context"
	"log"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"
)

const (
	logEvery   = time.Minute
	logSources = 256 // sources that are remembered; all others share one entry
)

// limiter allows a message once per key and minute and counts the others, in bounded memory.
type limiter struct {
	now func() time.Time

	mu    sync.Mutex
	seen  map[string]*said
	swept time.Time
}

// said is the last time a key was allowed.
type said struct {
	at     time.Time
	unsaid int // refused since then
}

func newLimiter() *limiter { return &limiter{now: time.Now, seen: map[string]*said{}} }

// allow reports whether key is allowed now, and how often it was refused since the last time.
func (l *limiter) allow(key string) (ok bool, unsaid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	s := l.seen[key]
	if s == nil && len(l.seen) >= logSources {
		l.sweep(now)
		if len(l.seen) >= logSources {
			key = "" // the entry that all further sources share
			s = l.seen[key]
		}
	}
	if s == nil {
		l.seen[key] = &said{at: now}
		return true, 0
	}
	if now.Sub(s.at) < logEvery {
		s.unsaid++
		return false, 0
	}
	unsaid = s.unsaid
	*s = said{at: now}
	return true, unsaid
}

// sweep removes the keys that are allowed again, at most once a second, so that a flood of sources does not cost a pass each.
func (l *limiter) sweep(now time.Time) {
	if now.Sub(l.swept) < time.Second {
		return
	}
	l.swept = now
	for k, old := range l.seen {
		if now.Sub(old.at) >= logEvery {
			delete(l.seen, k)
		}
	}
}

// logger is the log of this package and of memberlist.
type logger struct {
	to    *slog.Logger
	limit *limiter
}

// once logs a message at most once per key and minute.
func (l logger) once(level slog.Level, key, msg string, args ...any) {
	if !l.to.Enabled(context.Background(), level) {
		return
	}
	ok, unsaid := l.limit.allow(key)
	if !ok {
		return
	}
	if unsaid > 0 {
		args = append(args, "more", unsaid)
	}
	l.to.Log(context.Background(), level, msg, args...)
}

// forMemberlist returns a log.Logger that writes to l.
func (l logger) forMemberlist() *log.Logger { return log.New(lineWriter{l}, "", 0) }

type lineWriter struct{ logger }

// Write logs one line of memberlist: "[ERR] memberlist: text from=1.2.3.4:5".
func (w lineWriter) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	level, text := cutLevel(text)
	text = strings.TrimPrefix(text, "memberlist: ")
	class := classOf(text)
	if dropped[class] {
		return len(line), nil
	}
	var source string
	if i := strings.LastIndex(text, "from="); i >= 0 {
		source = strings.TrimSpace(text[i+len("from="):])
		text = strings.TrimSpace(text[:i])
		if host, _, err := net.SplitHostPort(source); err == nil {
			source = host
		}
	}
	if len(text) > 300 {
		text = text[:300] + "…"
	}
	if source == "" {
		w.once(level, class, "gossip: "+text)
	} else {
		w.once(level, class+"\x00"+source, "gossip: "+text, "from", source)
	}
	return len(line), nil
}

// dropped are lines of memberlist for which the delegates log a better message.
var dropped = map[string]bool{
	"ignoring alive message for": true,
	"Conflicting address for":    true,
	"Failed push":                true, // push/pull merge: NotifyMerge has logged the reason
}

// cutLevel maps memberlist's levels to slog's. memberlist's errors are packets that were refused and members that did not answer, never
// faults of this program.
func cutLevel(text string) (slog.Level, string) {
	for prefix, level := range map[string]slog.Level{
		"[ERR] ": slog.LevelWarn, "[ERROR] ": slog.LevelWarn, "[WARN] ": slog.LevelInfo,
		"[INFO] ": slog.LevelDebug, "[DEBUG] ": slog.LevelDebug,
	} {
		if rest, ok := strings.CutPrefix(text, prefix); ok {
			return level, rest
		}
	}
	return slog.LevelDebug, text
}

// classOf returns the constant beginning of a line: up to the first byte that a sender may have chosen.
func classOf(text string) string {
	if i := strings.IndexAny(text, `"'(:/=0123456789`); i >= 0 {
		text = text[:i]
	}
	words := strings.Fields(text)
	if len(words) > 5 {
		words = words[:5]
	}
	return strings.Join(words, " ")
}
