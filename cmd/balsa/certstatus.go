package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/balsahq/balsa/control/auth/pki"
)

func newCertificatesCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "certificates", Short: "This machine's certificates and keys, and the rotation of the cluster's"}
	cmd.AddCommand(newCertificatesStatusCommand(), newCertificatesRotateCommand())
	return cmd
}

func newCertificatesStatusCommand() *cobra.Command {
	c := newClusterClient()
	cfg := &c.paths
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List subject, signer and validity of each; fail when one is not valid",
		Long: `Lists every certificate and key of this machine's server or agent: file, subject,
signer, end of validity. A running process renews its certificates before they expire,
without a restart: it looks for those that are due once an hour. The command fails when
a certificate is not valid now, or cannot be read. On a server it also shows how far
the last rotation of the cluster's keys is, and which members it waits for.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var all []pki.Entry
			for _, dir := range []string{filepath.Join(cfg.ServerDir(), "tls"), cfg.AgentDir()} {
				list, err := pki.List(dir)
				if err != nil {
					return err
				}
				all = append(all, list...)
			}
			if len(all) == 0 {
				return fmt.Errorf("neither a server nor an agent has run with the data directory %s", cfg.DataDir)
			}
			faults := printCertificates(cmd.OutOrStdout(), all, time.Now())
			printClusterRotation(cmd.Context(), cmd.OutOrStdout(), c)
			return faults
		},
	}
	c.bind(cmd.Flags())
	return cmd
}

func printCertificates(w io.Writer, all []pki.Entry, now time.Time) error {
	var faults []error
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(out, "FILE\tSUBJECT\tSIGNED BY\tUNTIL\tSTATE")
	for _, e := range all {
		switch {
		case e.Err != nil:
			faults = append(faults, fmt.Errorf("%s: %w", e.File, e.Err))
		case e.Cert == nil:
			fmt.Fprintf(out, "%s\t(a key)\t-\t-\t-\n", e.File)
		default:
			state := e.State(now)
			fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\n", e.File, e.Cert.Subject, e.Cert.Issuer.CommonName, e.Cert.NotAfter.UTC().Format(time.DateTime), state)
			if state == pki.StateEnded || state == pki.StateFuture {
				faults = append(faults, fmt.Errorf("%s: %s", e.File, state))
			}
		}
	}
	return errors.Join(append([]error{out.Flush()}, faults...)...)
}
