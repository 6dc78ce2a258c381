package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// cpuTime returns the CPU time of a process and of the children it has waited for. The process's own is in nanoseconds,
// from schedstat (see proc(5)).
func cpuTime(pid int) time.Duration {
	var sum time.Duration
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, task.Name()))
		first, _, _ := strings.Cut(string(raw), " ")
		n, _ := strconv.ParseInt(first, 10, 64)
		sum += time.Duration(n)
	}
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(raw), ") ")
	if fields := strings.Fields(after); len(fields) > 14 {
		const tick = time.Second / 100
		for _, field := range fields[13:15] { // cutime, cstime
			n, _ := strconv.ParseInt(field, 10, 64)
			sum += time.Duration(n) * tick
		}
	}
	return sum
}

// peakMemory returns the peak resident memory of a process, in MiB.
func peakMemory(pid int) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(raw), "VmHWM:")
	fields := strings.Fields(after)
	if len(fields) == 0 {
		return 0, errors.New("the kernel does not report the peak of memory")
	}
	kib, err := strconv.ParseFloat(fields[0], 64)
	return kib / 1024, err
}
