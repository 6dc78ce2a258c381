package main

import (
	"log/slog"
	"os"
	"strconv"
	"syscall"
)

// serverNice is how much sooner than others a server gets a busy machine's
// processor: one that answers its peers late is taken for dead.
const serverNice = -10

// setNice gives every thread of this process, and so those they will start,
// a priority (setpriority(2): on Linux it is the thread's).
func setNice(nice int, log *slog.Logger) {
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
		log.Debug("priority is as it was", "wanted", nice, "error", err)
	}
}
