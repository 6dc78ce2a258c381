package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/balsahq/balsa/cmd/balsa/daemon/loglevel"
	"github.com/balsahq/balsa/cmd/balsa/daemon/process"
	"github.com/balsahq/balsa/fault"
)

func newLogsCommand() *cobra.Command {
	p, since, follow := newProcesses(), "", false
	cmd := &cobra.Command{
		Use:   "logs",
		Short: "Show the log of a server or an agent",
		Long: `Shows the log of the server that answers, of the servers of --server, of the servers and
agents of the nodes of --node, or of --all. Each reads its own log where it was started to
write it: from the file of ` + "`balsa up`" + ` or of a redirection, or from systemd's journal.
Of several, each line begins with the name of its process.

A server shows its log to users that may get the path /balsa/log; an agent to those that may
use nodes/proxy.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{}
			if since != "" {
				at, err := sinceWhen(since, time.Now())
				if err != nil {
					return err
				}
				query.Set("since", at.UTC().Format(time.RFC3339))
			}
			if follow {
				query.Set("follow", "true")
			}
			return p.askEach(cmd.Context(), get(process.PathLog, query), cmd.OutOrStdout())
		},
	}
	p.bind(cmd.PersistentFlags())
	cmd.Flags().StringVar(&since, "since", "", "only lines since then: a duration such as 10m, or a time such as 2026-01-02T15:04:05Z")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new lines")
	cmd.AddCommand(newLogLevelCommand(p))
	return cmd
}

func newLogLevelCommand(p *processes) *cobra.Command {
	return &cobra.Command{
		Use:   "level [LEVELS]",
		Short: "Show or change which lines are logged, until the process ends",
		Long: `Without an argument, shows which lines are logged. With one, changes it: debug, info, warn or
error, and other levels for folders of the source, as info,leader/scheduler=debug,overlay=debug.
The next start begins with --log-level again.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := get(process.PathLogLevel, nil)
			if len(args) == 1 {
				if _, err := loglevel.Parse(args[0]); err != nil {
					return err
				}
				r.Method, r.ContentLength = http.MethodPut, int64(len(args[0]))
				r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(args[0])), nil }
			}
			return p.askEach(cmd.Context(), r, cmd.OutOrStdout())
		},
	}
}

// sinceWhen reads a time, or how long ago it is.
func sinceWhen(text string, now time.Time) (time.Time, error) {
	if ago, err := time.ParseDuration(text); err == nil {
		return now.Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("--since %q: give a duration such as 10m, or a time such as 2026-01-02T15:04:05Z", text)
	}
	return at, nil
}

// askEach sends a request to each process, at the same time, and writes the answers line by line.
func (p *processes) askEach(ctx context.Context, r *http.Request, w io.Writer) error {
	list, err := p.find(ctx)
	if err != nil {
		return err
	}
	var (
		g    errgroup.Group
		mu   sync.Mutex
		errs []error
	)
	for _, of := range list {
		out := &lineWriter{w: w, mu: &mu}
		if len(list) > 1 {
			out.prefix = of.name + ": "
		}
		own := r.Clone(ctx)
		if r.GetBody != nil {
			if own.Body, err = r.GetBody(); err != nil {
				return err
			}
		}
		g.Go(fault.ContainedErr("logs", func() error {
			err := errors.Join(p.ask(ctx, of, own, out), out.end())
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			return nil
		}))
	}
	_ = g.Wait()
	return errors.Join(errs...)
}

// lineWriter writes whole lines, each with a prefix, to a writer that it shares with others.
type lineWriter struct {
	w      io.Writer
	mu     *sync.Mutex
	prefix string
	rest   []byte
}

// maxPartLine is how much of a line without an end is held, in bytes.
const maxPartLine = 64 << 10

// Write implements io.Writer.
func (l *lineWriter) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		i := bytes.IndexByte(l.rest, '\n')
		if i < 0 && len(l.rest) < maxPartLine {
			return len(p), nil
		}
		if i < 0 {
			i = len(l.rest) - 1
		}
		if err := l.write(l.rest[:i+1]); err != nil {
			return 0, err
		}
		l.rest = l.rest[i+1:]
	}
}

func (l *lineWriter) write(line []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.w.Write(append([]byte(l.prefix), line...))
	return err
}

// end writes a last line that has no end.
func (l *lineWriter) end() error {
	if len(l.rest) == 0 {
		return nil
	}
	return l.write(append(l.rest, '\n'))
}
