package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// gcPercent trades CPU for memory: the heap may grow by this part of what is
// live before it is collected. Go's default is 100; GOGC in the environment
// wins.
const gcPercent = 75

// settle are the pauses after the last milestone, and between one another,
// after which memory is given back: soon, when the first controllers have
// looked around, and when the first garbage of idling has been collected.
var settle = []time.Duration{5 * time.Second, 2 * time.Minute}

// startHousekeeping looks after the process itself: profiles, where asked for,
// and memory that only starting needed.
func (p *parts) startHousekeeping(cfg *config, started <-chan struct{}) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
		p.keep("collector", func(ctx context.Context) error {
			followCollector(ctx)
			return nil
		})
	}
	if cfg.ProfileAddress != "" {
		p.start("profiles", func(ctx context.Context) error { return serveProfiles(ctx, cfg.ProfileAddress) })
	}
	p.keep("housekeeping", func(ctx context.Context) error {
		if await(ctx, started) {
			giveBack(ctx)
		}
		<-ctx.Done()
		return nil
	})
}

// giveBack returns memory that only starting needed. It is a saving, nothing
// depends on it: where the kernel does not take it, things stay as they are.
func giveBack(ctx context.Context) {
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

func serveProfiles(ctx context.Context, address string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("--profile-address: %w", err)
	}
	return nil
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
