package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	noderuntime "github.com/balsahq/balsa/node/runtime"
)

func newImageCommand() *cobra.Command {
	cfg := config.DefaultPaths()
	cmd := &cobra.Command{Use: "image", Short: "Images on this node"}
	bindPaths(cmd.PersistentFlags(), &cfg)
	cmd.AddCommand(&cobra.Command{
		Use:   "import FILE…",
		Short: "Import images from Docker or OCI archives; - is standard input",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, path := range args {
				if err := importFile(cmd, cfg.Runtime().Socket(), path); err != nil {
					return err
				}
			}
			return nil
		},
	}, &cobra.Command{
		Use:   "ls",
		Short: "List the images",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			images, err := noderuntime.List(cmd.Context(), cfg.Runtime().Socket())
			if err != nil {
				return err
			}
			out := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 3, ' ', 0)
			fmt.Fprintln(out, "NAME\tDIGEST\tSIZE")
			for _, i := range images {
				fmt.Fprintf(out, "%s\t%s\t%.1f MiB\n", i.Name, strings.TrimPrefix(i.Digest, "sha256:")[:12], float64(i.Bytes)/(1<<20))
			}
			return out.Flush()
		},
	})
	return cmd
}

func importFile(cmd *cobra.Command, socket, path string) error {
	var in io.Reader = os.Stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	imported, err := noderuntime.Import(cmd.Context(), socket, in)
	if err != nil {
		return fmt.Errorf("cannot import %s: %w", path, err)
	}
	for _, name := range imported {
		fmt.Fprintln(cmd.OutOrStdout(), "imported", name)
	}
	return nil
}
