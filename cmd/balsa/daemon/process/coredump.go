package process

import (
	"log/slog"

	"golang.org/x/sys/unix"
)

// ForbidCoreDump keeps this process's memory, where the cluster's keys are, out of core
// files and from debuggers of other users. Programs that it starts are as they
// would be: the attribute ends with execve(2), unlike a limit (RLIMIT_CORE), which
// containers would inherit.
func ForbidCoreDump(log *slog.Logger) {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		log.Warn("a crash may leave a core file with the cluster's keys in it", "err", err)
	}
}
