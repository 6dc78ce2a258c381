package process

import "log/slog"

// Prepare is called before any part starts: it forbids core files and contains panics.
func Prepare(log *slog.Logger) {
	ForbidCoreDump(log)
	ContainPanics(log)
}
