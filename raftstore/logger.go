package raftstore

import (
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// raftLogger sends Raft's log messages to log, at debug level: for Raft every lost heartbeat is an error. The store itself logs the
// events that an administrator should know of.
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
