package peer

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"
)

const (
	logEvery = time.Minute
	logKinds = 4096 // pairs of remote and kind that are remembered
)

// logLimit logs one kind of refusal of one remote once a minute.
type logLimit struct {
	log *slog.Logger

	mu    sync.Mutex
	last  map[logKey]logged
	swept time.Time
}

type logKey struct{ remote, kind string }

type logged struct {
	at         time.Time
	suppressed int
}

func newLogLimit(log *slog.Logger) *logLimit {
	return &logLimit{log: log, last: map[logKey]logged{}}
}

// refused logs that a remote was refused, unless it logged the same within the last minute.
func (l *logLimit) refused(remote, kind string, err error) {
	l.logAt(slog.LevelWarn, remote, kind, err)
}

// logAt is refused at another level.
func (l *logLimit) logAt(level slog.Level, remote, kind string, err error) {
	if n, ok := l.admit(logKey{remote, kind}, time.Now()); ok {
		l.log.Log(context.Background(), level, "refused: "+kind, "remote", remote, "err", err, "unlogged", n)
	}
}

// admit reports whether to log, and how often it has not logged the key since the last time. When logKinds pairs are remembered, new ones
// are not logged.
func (l *logLimit) admit(key logKey, now time.Time) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, known := l.last[key]
	if known && now.Sub(e.at) < logEvery {
		e.suppressed++
		l.last[key] = e
		return 0, false
	}
	if !known && len(l.last) >= logKinds {
		if now.Sub(l.swept) >= time.Second {
			l.swept = now
			maps.DeleteFunc(l.last, func(_ logKey, e logged) bool { return now.Sub(e.at) >= logEvery })
		}
		if len(l.last) >= logKinds {
			return 0, false
		}
	}
	l.last[key] = logged{at: now}
	return e.suppressed, true
}
