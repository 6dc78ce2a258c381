package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/balsahq/balsa/cmd/balsa/hardening"
	"github.com/balsahq/balsa/control/encryption"
)

// checkTime bounds the whole command.
const checkTime = 2 * time.Minute

func newCheckCommand() *cobra.Command {
	client, format := newAPIClient(), "table"
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the cluster against the CIS Kubernetes Benchmark, and say how to fix what fails",
		Long: `Reads the settings of every server and node, tries requests and handshakes that must be
refused (without credentials, with old TLS versions, with weak ciphers), and reads roles,
pods and namespaces. As root it also checks the files of this machine. The table shows
pass, fail, or n/a with the reason for each control of the benchmark that can be checked
on a running cluster; below it are the commands that fix failures. The exit status is 1
when a control fails.

The command needs the rights of an administrator. It changes nothing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "table" && format != "json" {
				return fmt.Errorf("--output %q: give table or json", format)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), checkTime)
			defer cancel()
			if err := client.connect(ctx); err != nil {
				return err
			}
			facts, err := hardening.Gather(ctx, hardening.Source{
				Client: client, Rest: client.rest, DataDir: client.paths.DataDir,
				Encryption: func(ctx context.Context) (map[string]bool, error) { return encryptedResources(ctx, client) },
			})
			if err != nil {
				return err
			}
			return writeCheck(cmd.OutOrStdout(), format, hardening.Judge(facts))
		},
	}
	client.bind(cmd.Flags())
	cmd.Flags().StringVarP(&format, "output", "o", format, "table or json")
	return cmd
}

func writeCheck(out io.Writer, format string, rows []hardening.Row) error {
	err := error(nil)
	if format == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(rows)
	} else {
		err = hardening.Write(out, rows)
	}
	if n := hardening.Failures(rows); err == nil && n > 0 {
		err = fmt.Errorf("controls that failed: %d", n)
	}
	return err
}

// encryptedResources returns for each resource whether all its stored objects are
// encrypted in the way that the servers' configuration demands.
func encryptedResources(ctx context.Context, client *apiClient) (map[string]bool, error) {
	r, err := encryption.NewRewriter(client.rest)
	if err != nil {
		return nil, err
	}
	s, err := r.Status(ctx)
	if err != nil {
		return nil, err
	}
	if s.Configuration == "" {
		return nil, errors.New("the servers have no encryption configuration")
	}
	out := map[string]bool{}
	for _, share := range s.Shares {
		fine := share.Error == "" && !share.Stale && share.With.Provider != ""
		before, seen := out[share.Resource]
		out[share.Resource] = fine && (before || !seen)
	}
	return out, encryption.Agree(ctx, client.rest)
}
