package raftstore

import (
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// raftLogger sends what Raft logs to log, at debug level: every lost heartbeat is
// an error to Raft. What somebody should know of, the store says itself.
func raftLogger(log *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Output: io.Discard, Level: hclog.Off})
	l.RegisterSink(sink{log})
	return l
}

type sink struct{ log *slog.Logger }

// Accept implements hclog.SinkAdapter.
func (s sink) Accept(_ string, _ hclog.Level, msg string, args ...any) {
	s.log.Debug("raft: "+msg, args...)
}
