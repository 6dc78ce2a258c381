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

// ServerNice is how much sooner than others a server gets a busy machine's
// processor: one that answers its peers late is taken for dead.
const ServerNice = -10

// SetSessionNice gives this process's session a share of a busy machine. Where
// Linux shares the processor between sessions first (sched(7), autogroup), a
// thread's priority counts within its session only. A process in somebody else's
// session, as a shell's child is, leaves it alone.
func SetSessionNice(nice int, log *slog.Logger) {
	if id, err := unix.Getsid(0); err != nil || id != os.Getpid() {
		return
	}
	err := os.WriteFile("/proc/self/autogroup", []byte(strconv.Itoa(nice)), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Debug("the session's share of the processor is as it was", "wanted", nice, "err", err)
	}
}

// SetNice gives every thread of this process, and so those they will start,
// a priority (setpriority(2): on Linux it is the thread's).
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
		log.Debug("priority is as it was", "wanted", nice, "err", err)
	}
}
