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
	logKinds = 4096 // (who, what) pairs remembered
)

// logLimit writes one line a minute about one kind of refusal of one remote.
type logLimit struct {
	log *slog.Logger

	mu    sync.Mutex
	last  map[logKey]logged
	swept time.Time
}

type logKey struct{ who, kind string }

type logged struct {
	at         time.Time
	suppressed int
}

func newLogLimit(log *slog.Logger) *logLimit {
	return &logLimit{log: log, last: map[logKey]logged{}}
}

// refused logs that who was refused, unless it did so within the last minute.
func (l *logLimit) refused(who, kind string, err error) {
	l.note(slog.LevelWarn, who, kind, err)
}

func (l *logLimit) note(level slog.Level, who, kind string, err error) {
	if n, ok := l.admit(logKey{who, kind}, time.Now()); ok {
		l.log.Log(context.Background(), level, "refused: "+kind, "remote", who, "err", err, "unlogged", n)
	}
}

// admit tells whether to log, and how often it was refused since it last did.
// When too many remotes are remembered new ones are not logged.
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
