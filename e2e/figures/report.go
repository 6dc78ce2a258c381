package figures

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// Header says what was measured, on which machine and under which load. A binary that is "" or has no version is called
// unknown; sharers names the programs that share the processors.
func Header(binary, unknown, sharers string, began time.Time) string {
	version := unknown
	if out, err := exec.Command(binary, "version").Output(); err == nil {
		version = strings.Join(strings.Fields(string(out)), " ")
	}
	return fmt.Sprintf("%s\n%s; %d CPUs, shared by %s; load average when it began: %s",
		version, began.Format(time.RFC3339), runtime.NumCPU(), sharers, LoadAverage())
}

// Progress prints a line for the user on standard error, with the time since began.
func Progress(began time.Time, format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%5.0fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
}
