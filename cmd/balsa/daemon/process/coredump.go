package process

import (
	"log/slog"

	"golang.org/x/sys/unix"
)

// ForbidCoreDump keeps the memory of this process, which holds the cluster's keys, out
// of core files and away from debuggers of other users. Programs that the process
// starts are not affected: execve(2) resets the attribute. Containers would inherit a
// limit (RLIMIT_CORE).
func ForbidCoreDump(log *slog.Logger) {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		log.Warn("cannot forbid core files; a crash may write one with the cluster's keys in it", "err", err)
	}
}
