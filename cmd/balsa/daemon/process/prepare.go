package process

import "log/slog"

// Prepare keeps core files from being written and panics where they are, before any part starts.
func Prepare(log *slog.Logger) {
	ForbidCoreDump(log)
	ContainPanics(log)
}
