package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// bootTime bounds the time until an emulated machine's first shell.
const bootTime = 10 * time.Minute

type options struct {
	balsa, installer, dir, accel string
	servers, agents, cpus        int
	memory, port                 int
	clock, pods                  bool
	patience                     time.Duration
}

func main() {
	var opts options
	flag.StringVar(&opts.balsa, "balsa", "bin/balsa", "the program under test")
	flag.StringVar(&opts.installer, "installer", "install.sh", "its installer")
	flag.StringVar(&opts.dir, "dir", filepath.Join(os.TempDir(), "balsa-vm"), "keeps Debian between runs, and what machines printed")
	flag.StringVar(&opts.accel, "accel", "tcg,thread=multi", "qemu's accelerator")
	flag.IntVar(&opts.servers, "servers", 3, "how many machines run servers: 1 or 3")
	flag.IntVar(&opts.agents, "agents", 0, "how many more machines run agents, whose clocks jump too: 0 or 1")
	flag.IntVar(&opts.cpus, "cpus", 2, "CPUs of each")
	flag.IntVar(&opts.memory, "memory", 2048, "MiB of each")
	flag.IntVar(&opts.port, "port", 9797, "UDP port on 127.0.0.1 that joins them")
	flag.BoolVar(&opts.clock, "clock", true, "let the clocks of the first machine and of the agents jump 400 days on, a day back, and to where they were")
	flag.BoolVar(&opts.pods, "pods", true, "let the servers run pods")
	flag.DurationVar(&opts.patience, "patience", 10*time.Minute, "how long a step may take")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, opts); err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, opts options) error {
	if err := os.MkdirAll(opts.dir, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(opts.dir, "run-")
	if err != nil {
		return err
	}
	s := &story{opts: opts, work: work, began: time.Now()}
	s.say("machines, disks and consoles are in %s", work)
	if s.image, err = makeImage(ctx, opts, work); err != nil {
		return err
	}
	defer s.end()
	if err := s.tell(ctx); err != nil {
		for _, m := range s.machines {
			if log, _ := m.run(context.WithoutCancel(ctx), time.Minute, "journalctl -u balsa-server -n 30 -o short-iso --no-pager"); log != "" {
				fmt.Fprintf(os.Stderr, "%s:\n%s\n", m.name, log)
			}
		}
		return err
	}
	s.say("all of it held")
	return os.RemoveAll(work)
}
