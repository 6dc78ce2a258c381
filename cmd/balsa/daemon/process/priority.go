package process

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ServerNice is the priority of a server's threads (nice(2); lower comes first). On a
// busy machine a server with the usual priority may answer its peers so late that they
// take it for dead.
const ServerNice = -10

// SetSessionNice sets the priority of this process's session. Where Linux shares the
// processor between sessions first (autogroup, see sched(7)), a thread's priority
// counts only within its session. It changes nothing when another process leads the
// session, as for a child of a shell.
func SetSessionNice(nice int, log *slog.Logger) {
	if id, err := unix.Getsid(0); err != nil || id != os.Getpid() {
		return
	}
	err := os.WriteFile("/proc/self/autogroup", []byte(strconv.Itoa(nice)), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Debug("cannot set the priority of the session; it stays as it was", "wanted", nice, "err", err)
	}
}

// SetNice sets the priority of every thread of this process. New threads inherit it. (On
// Linux setpriority(2) is for one thread, not for the process.)
func SetNice(nice int, log *slog.Logger) {
	threads, err := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		id, numErr := strconv.Atoi(t.Name())
		if numErr != nil {
			continue
		}
		if setErr := syscall.Setpriority(syscall.PRIO_PROCESS, id, nice); setErr != nil && setErr != syscall.ESRCH {
			err = setErr
		}
	}
	if err != nil {
		log.Debug("cannot set the priority of all threads; some keep theirs", "wanted", nice, "err", err)
	}
}
