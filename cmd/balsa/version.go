package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
)

// version is set at build time from the repository's description.
var version = "dev"

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "balsa %s\nkubernetes %s\n%s %s/%s\n", version, config.KubernetesVersion, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
