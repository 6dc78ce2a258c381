package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/process"
	"github.com/balsahq/balsa/cmd/balsa/daemon/server"
	"github.com/balsahq/balsa/fault"
)

// milestoneText is what `balsa up` prints when a milestone is reached.
var milestoneText = map[string]string{
	process.MilestoneAPI:     "the API answers",
	process.MilestoneLeader:  "controllers and scheduler lead",
	process.MilestoneRuntime: "the container runtime is ready",
	process.MilestoneNode:    "this node is ready",
}

func newUpCommand() *cobra.Command {
	cfg, file := defaultServer(), ""
	demo, wait := true, 2*time.Minute
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster of this machine in the background, and wait until it works",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := prepareServer(cmd, file, &cfg); err != nil {
				return err
			}
			u := starter{cfg: &cfg, out: cmd.OutOrStdout(), began: time.Now()}
			ctx, cancel := context.WithTimeout(cmd.Context(), wait)
			defer cancel()
			if pid := process.RunningPID(cfg.PIDFile()); pid != 0 {
				u.say("balsa runs already (process %d)", pid)
			} else if err := u.start(ctx, serverFlags(cmd)); err != nil {
				return err
			}
			if demo && !cfg.DisableAgent {
				if err := u.demo(ctx); err != nil {
					return fmt.Errorf("the cluster runs, but the demonstration does not: %w", err)
				}
			}
			u.farewell(demo && !cfg.DisableAgent)
			return nil
		},
	}
	bindPaths(cmd.Flags(), &cfg.Paths)
	bindNode(cmd.Flags(), &cfg.Node)
	bindServer(cmd.Flags(), &cfg)
	cmd.Flags().StringVar(&file, "config", file, "YAML file whose keys are the names of the flags of `balsa server`")
	cmd.Flags().BoolVar(&demo, "demo", demo, "run a Deployment of 3 replicas behind a Service, and print the Service's answer")
	cmd.Flags().DurationVar(&wait, "wait", wait, "how long to wait until everything works")
	return cmd
}

// serverFlags returns the given flags in the form of `balsa server`.
func serverFlags(cmd *cobra.Command) []string {
	var out []string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "demo" && f.Name != "wait" {
			out = append(out, "--"+f.Name+"="+strings.Trim(f.Value.String(), "[]"))
		}
	})
	return out
}

// starter is one run of `balsa up`.
type starter struct {
	cfg   *config.Server
	out   io.Writer
	began time.Time
}

func (u *starter) say(format string, args ...any) {
	fmt.Fprintf(u.out, "%6.2fs  %s\n", time.Since(u.began).Seconds(), fmt.Sprintf(format, args...))
}

// start starts `balsa server` in a new session and prints its milestones until the last
// one.
func (u *starter) start(ctx context.Context, flags []string) error {
	if err := server.Preflight(u.cfg); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(u.cfg.LogFile()), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(u.cfg.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	defer log.Close()
	logStart, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	milestones, report, err := os.Pipe()
	if err != nil {
		return err
	}
	defer milestones.Close()
	cmd := exec.Command(program, append([]string{"server"}, flags...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{report}
	cmd.Env = append(os.Environ(), process.ProgressFD+"=3")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	report.Close()
	if err != nil {
		return err
	}
	u.say("starting (process %d, log %s)", cmd.Process.Pid, u.cfg.LogFile())
	if err := u.follow(ctx, milestones); err != nil {
		ended := make(chan struct{})
		go fault.Contained("cmd/balsa", func() { _ = cmd.Wait(); close(ended) })()
		select {
		case <-ended:
			return fmt.Errorf("the server ended: %s", lastError(u.cfg.LogFile(), logStart))
		case <-time.After(time.Second):
			return fmt.Errorf("%w; the server still tries, its log is %s, and `balsa down` stops it", err, u.cfg.LogFile())
		}
	}
	return cmd.Process.Release()
}

// follow prints each milestone and returns nil after the last one.
func (u *starter) follow(ctx context.Context, milestones *os.File) error {
	stop := context.AfterFunc(ctx, func() { _ = milestones.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	missing := 4
	if u.cfg.DisableAgent {
		missing = 2
	}
	lines := bufio.NewScanner(milestones)
	for lines.Scan() {
		missing--
		u.say("%s", milestoneText[lines.Text()])
	}
	if ctx.Err() != nil {
		return fmt.Errorf("not everything worked in time: %d milestones are missing", missing)
	}
	if missing > 0 {
		return errors.New("the server stopped reporting milestones")
	}
	return nil
}

// lastError returns the last line that the server has written to the log since offset from.
func lastError(path string, from int64) string {
	file, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if _, err := file.Seek(from, io.SeekStart); err != nil {
		return err.Error()
	}
	last := "it wrote no error; see " + path
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if text := strings.TrimSpace(lines.Text()); text != "" {
			last = strings.TrimPrefix(text, "balsa: ")
		}
	}
	return last
}

func (u *starter) farewell(demo bool) {
	fmt.Fprintf(u.out, `
The cluster works. Its kubeconfig is %s
(as an environment: export KUBECONFIG=%[1]s).

Next:
  balsa status                      what runs here
  balsa kubectl get pods -A         the pods
`, u.cfg.Kubeconfig())
	if demo {
		fmt.Fprintln(u.out, "  balsa kubectl scale deployment hello --replicas=5")
		fmt.Fprintln(u.out, "  balsa kubectl delete deployment,service hello")
	}
	fmt.Fprintln(u.out, "  balsa down                        stop it and leave the machine as it was")
}
