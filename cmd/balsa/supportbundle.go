package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"

	"github.com/balsahq/balsa/cmd/balsa/daemon/process"
	"github.com/balsahq/balsa/cmd/balsa/supportbundle"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
)

// bundleTime bounds the whole command, and askTime what one process is asked.
const (
	bundleTime = 15 * time.Minute
	askTime    = time.Minute
)

func newSupportBundleCommand() *cobra.Command {
	p, out, since := newProcesses(), "", 24*time.Hour
	p.all = true
	cmd := &cobra.Command{
		Use:   "support-bundle",
		Short: "Write logs, settings, metrics and objects of the cluster into one file, without secrets",
		Long: `Writes a tar.gz file, readable by its owner alone, with what others need to understand a
trouble: of every server and agent the log, the goroutines, the metrics and the settings; the
members; the result of ` + "`balsa check`" + `; and the cluster's objects.

Secrets are left out. So are the data of ConfigMaps, the values of variables and of fields and
arguments that look like secrets, and all but the metadata of custom resources. What looks like
a token or a key is removed from every file, and so is the value of every Secret in the cluster.
Look through the file before you send it, all the same.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), bundleTime)
			defer cancel()
			if out == "" {
				out = "balsa-support-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
			}
			list, err := p.find(ctx)
			if err != nil {
				return err
			}
			objects, err := dynamic.NewForConfig(p.rest)
			if err != nil {
				return err
			}
			err = supportbundle.Create(ctx, out, supportbundle.Config{
				Client: p, Dynamic: objects, Sources: p.sources(list, time.Now().Add(-since)),
				Say: func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) },
			})
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), out)
			}
			return err
		},
	}
	p.apiClient.bind(cmd.Flags())
	cmd.Flags().StringVarP(&out, "output", "o", "", "the file, which must not exist (default: balsa-support-TIME.tar.gz here)")
	cmd.Flags().DurationVar(&since, "since", since, "how far back the logs go")
	return cmd
}

// sources are the files of a bundle that are not objects.
func (p *processes) sources(list []processOf, since time.Time) []supportbundle.Source {
	asked := func(of processOf, path string, query url.Values) func(context.Context, io.Writer) error {
		return func(ctx context.Context, w io.Writer) error {
			ctx, cancel := context.WithTimeout(ctx, askTime)
			defer cancel()
			return p.ask(ctx, of, get(path, query), w)
		}
	}
	out := []supportbundle.Source{
		{Name: "version.txt", Write: asked(list[0], "/version", nil)},
		{Name: "health.txt", Write: asked(list[0], "/readyz", url.Values{"verbose": {"1"}})},
		{Name: "members.txt", Write: p.writeMembers},
		{Name: "check.txt", Write: p.runCommand("check")},
	}
	for _, of := range list {
		kind, paths := "nodes/", map[string]string{
			"metrics.txt": "/metrics", "cadvisor.txt": "/metrics/cadvisor", "configz.json": "/configz", "goroutines.txt": process.PathGoroutines, "level.txt": process.PathLogLevel}
		if of.address != "" {
			kind, paths = "servers/", map[string]string{
				"metrics.txt": "/metrics", "flags.txt": "/flagz", "goroutines.txt": process.PathGoroutines, "level.txt": process.PathLogLevel, "ready.txt": "/readyz"}
		}
		for name, path := range paths {
			out = append(out, supportbundle.Source{Name: kind + of.name + "/" + name, Write: asked(of, path, nil)})
		}
		out = append(out, supportbundle.Source{Name: kind + of.name + "/log.txt", Write: asked(of, process.PathLog, url.Values{"since": {since.UTC().Format(time.RFC3339)}})})
	}
	return out
}

func (p *processes) writeMembers(ctx context.Context, w io.Writer) error {
	cluster := &clusterClient{paths: p.paths, kubeconfig: p.kubeconfig}
	return cluster.call(ctx, func(ctx context.Context, cc clusterpb.ClusterClient) error {
		answer, err := cc.Members(ctx, &clusterpb.MembersRequest{})
		if err != nil {
			return err
		}
		return printMembers(w, answer, time.Now())
	})
}

// runCommand returns a function that writes the output of another command of this program, and its error.
func (p *processes) runCommand(args ...string) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		line := append(slices.Clone(args), "--data-dir", p.paths.DataDir)
		if p.kubeconfig != "" {
			line = append(line, "--kubeconfig", p.kubeconfig)
		}
		root := newCommand()
		var out bytes.Buffer
		root.SetArgs(line)
		root.SetOut(&out)
		root.SetErr(&out)
		if err := root.ExecuteContext(ctx); err != nil {
			fmt.Fprintln(&out, err)
		}
		_, err := w.Write(out.Bytes())
		return err
	}
}
