package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/nodesetup"
	"github.com/balsahq/balsa/cmd/balsa/daemon/process"
	noderuntime "github.com/balsahq/balsa/node/runtime"
)

func newDownCommand() *cobra.Command {
	cfg := config.DefaultNode()
	purge := false
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop everything on this machine and leave it as it was",
		Long: `Stops the server, its containers and the container runtime, and removes
their mounts, links, routes, nftables rules, control groups and network
namespaces. The cluster's data stays, and ` + "`balsa up`" + ` starts the same
cluster again. --purge removes the data too.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errors.New("root is needed to stop what root has started (run it with sudo)")
			}
			if err := cfg.Validate(); err != nil {
				return err
			}
			return takeDown(cmd.Context(), cmd, &cfg, purge)
		},
	}
	bindPaths(cmd.Flags(), &cfg.Paths)
	cmd.Flags().StringVar(&cfg.CgroupRoot, "cgroup-root", cfg.CgroupRoot, "control group of the pods, as it was given to the server")
	cmd.Flags().StringVar(&cfg.LogDir, "log-dir", cfg.LogDir, "directory of the logs of containers, as it was given to the server")
	cmd.Flags().BoolVar(&purge, "purge", purge, "remove the cluster's data too; this cannot be undone")
	return cmd
}

func takeDown(ctx context.Context, cmd *cobra.Command, cfg *config.Node, purge bool) error {
	out := cmd.OutOrStdout()
	if pid := process.RunningPID(cfg.PIDFile()); pid != 0 {
		fmt.Fprintf(out, "stopping balsa (process %d)\n", pid)
		if err := stopServer(ctx, pid); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, "ending containers and the container runtime")
	if err := noderuntime.Teardown(cfg.Runtime(), cfg.CgroupRoot); err != nil {
		return err
	}
	fmt.Fprintln(out, "removing links, routes and rules")
	if err := nodesetup.CleanNetwork(cfg); err != nil {
		return err
	}
	if err := os.RemoveAll(cfg.RunDir); err != nil {
		return err
	}
	if !purge {
		fmt.Fprintf(out, "done; the cluster's data stays in %s (--purge removes it)\n", cfg.DataDir)
		return nil
	}
	if err := noderuntime.UnmountBelow(cfg.DataDir); err != nil {
		return err
	}
	if err := errors.Join(purgeDir(cfg.DataDir), os.RemoveAll(filepath.Join(cfg.LogDir, "pods")), os.RemoveAll(filepath.Join(cfg.LogDir, "containers"))); err != nil {
		return err
	}
	fmt.Fprintf(out, "done; %s is removed\n", cfg.DataDir)
	return nil
}

// purgeDir removes a directory. A directory that is a mount point cannot be removed: it is emptied.
func purgeDir(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, syscall.EBUSY) {
		return err
	}
	if left, readErr := os.ReadDir(dir); readErr != nil || len(left) > 0 {
		return err
	}
	return nil
}

// stopServer sends SIGTERM, waits 30 s for the end of the process, then sends SIGKILL.
func stopServer(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, step := range []struct {
		signal syscall.Signal
		grace  time.Duration
	}{{syscall.SIGTERM, 30 * time.Second}, {syscall.SIGKILL, 10 * time.Second}} {
		if err := unix.PidfdSendSignal(fd, step.signal, nil, 0); errors.Is(err, unix.ESRCH) {
			return nil
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(step.grace.Milliseconds()))
		if n > 0 || ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return fmt.Errorf("process %d does not end, even after SIGKILL", pid)
}
