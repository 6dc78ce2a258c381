package raftstore

import (
	"context"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// raftLogger sends what Raft logs to log. Raft calls everyday matters Info and
// every election a warning, so all of it goes one level down.
func raftLogger(log *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Output: io.Discard, Level: hclog.Off})
	l.RegisterSink(sink{log})
	return l
}

type sink struct{ log *slog.Logger }

// Accept implements hclog.SinkAdapter.
func (s sink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	if level >= hclog.Error {
		to = slog.LevelWarn
	}
	if ctx := context.Background(); s.log.Enabled(ctx, to) {
		s.log.Log(ctx, to, "raft: "+msg, args...)
	}
}
