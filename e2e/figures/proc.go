package figures

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ticks is the number of units of CPU time a second in /proc (USER_HZ, the same on every architecture that Linux runs
// containers on).
const ticks = 100

// CPUTime returns the CPU time of the processes so far, in user and kernel mode; see proc(5). An ended process counts
// as 0.
func CPUTime(pids []int) time.Duration {
	var sum time.Duration
	for _, pid := range pids {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		_, after, _ := bytes.Cut(raw, []byte(") "))
		fields := strings.Fields(string(after))
		if len(fields) < 13 {
			continue
		}
		for _, field := range fields[11:13] { // utime, stime
			n, _ := strconv.ParseInt(field, 10, 64)
			sum += time.Duration(n) * time.Second / ticks
		}
	}
	return sum
}

// PSS returns the proportional set size of the processes in MiB.
func PSS(pids []int) (float64, error) {
	var kib float64
	for _, pid := range pids {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(raw)) {
			if value, ok := strings.CutPrefix(line, "Pss:"); ok {
				n, _, _ := strings.Cut(strings.TrimSpace(value), " ")
				v, err := strconv.ParseFloat(n, 64)
				if err != nil {
					return 0, err
				}
				kib += v
			}
		}
	}
	return kib / 1024, nil
}

// Processes returns the processes whose arguments match.
func Processes(match func(args []string) bool) []int {
	var out []int
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil || len(raw) == 0 {
			continue
		}
		if match(strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			out = append(out, pid)
		}
	}
	return out
}

// LoadAverage returns the load averages of the last 1, 5 and 15 minutes.
func LoadAverage() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(raw))[:3], " ")
}
