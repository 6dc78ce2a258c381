package process

import (
	"bufio"
	"context"
	"debug/elf"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/cmd/balsa/daemon/lifecycle"
)

// gcPercent trades CPU for memory: the heap may grow by this percentage of its live
// part before the next collection. Go's default is 100. GOGC in the environment
// comes first.
const gcPercent = 75

// settle are the pauses before memory goes back to the kernel, counted from the last
// milestone and then from the time before. After the first pause the controllers have
// read their objects once; after the second one, the garbage of the start has been
// collected.
var settle = []time.Duration{5 * time.Second, 2 * time.Minute}

// StartHousekeeping sets the GC percentage, unless GOGC is set, and starts the parts
// that serve the process itself: profiles at profileAddress, unless it is empty, and
// the release of memory after started is closed.
func StartHousekeeping(p *lifecycle.Group, profileAddress string, started <-chan struct{}) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
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

// ReleaseMemory gives memory that only the start needed back to the kernel, after
// each pause of settle, and returns after the last one or when ctx ends. Errors of
// the kernel are ignored: nothing depends on the saving.
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

// dropProgramPages unmaps the program's own read-only pages. Initialisation reads most
// of a large binary once, and the pages that it read stay mapped and count as used. They
// remain in the page cache, so code that runs again costs a minor fault and no read of
// the disk. An idle server has a PSS of 87 MiB with it and 160 MiB without.
//
// The kernel forgets changes to such pages. A position-independent program has some: the
// relocations, which the loader writes before it makes the pages read-only. Therefore
// dropProgramPages does nothing in a program that is not linked to fixed addresses.
func dropProgramPages() error {
	const self = "/proc/self/exe"
	if fixed, err := linkedToFixedAddresses(self); err != nil || !fixed {
		return err
	}
	program, err := os.Readlink(self)
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

// linkedToFixedAddresses reports whether the program in a file is no position-independent
// one.
func linkedToFixedAddresses(path string) (bool, error) {
	program, err := elf.Open(path)
	if err != nil {
		return false, err
	}
	defer program.Close()
	return program.Type == elf.ET_EXEC, nil
}
