package process

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/cmd/balsa/daemon/lifecycle"
)

// gcPercent trades CPU for memory: the heap may grow by this part of what is
// live before it is collected. Go's default is 100; GOGC in the environment
// wins.
const gcPercent = 75

// settle are the pauses after the last milestone, and between one another,
// after which memory is given back: soon, when the first controllers have
// looked around, and when the first garbage of idling has been collected.
var settle = []time.Duration{5 * time.Second, 2 * time.Minute}

// StartHousekeeping looks after the process itself: profiles, where asked for,
// and memory that only starting needed.
func StartHousekeeping(p *lifecycle.Group, profileAddress string, started <-chan struct{}) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
		p.Keep("collector", func(ctx context.Context) error {
			followCollector(ctx)
			return nil
		})
	}
	if profileAddress != "" {
		p.Start("profiles", func(ctx context.Context) error { return serveProfiles(ctx, profileAddress) })
	}
	p.Keep("housekeeping", func(ctx context.Context) error {
		if lifecycle.Await(ctx, started) {
			ReleaseMemory(ctx)
		}
		<-ctx.Done()
		return nil
	})
}

// ReleaseMemory returns memory that only starting needed. It is a saving, nothing
// depends on it: where the kernel does not take it, things stay as they are.
func ReleaseMemory(ctx context.Context) {
	for _, pause := range settle {
		select {
		case <-time.After(pause):
			debug.FreeOSMemory()
			_ = dropProgramPages()
		case <-ctx.Done():
			return
		}
	}
}

// dropProgramPages unmaps the program's own read-only pages. Initialisation
// has touched most of a large binary, and what it touched stays mapped, and
// counted. What runs comes back from the page cache at the next fault, without
// a disk: about half of it within seconds, since a fault maps its neighbours
// too.
func dropProgramPages() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		var from, to uintptr
		var access string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &access); err != nil {
			return err
		}
		if !strings.HasSuffix(lines.Text(), program) || strings.Contains(access, "w") {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); errno != 0 {
			return errno
		}
	}
	return lines.Err()
}
