package main

import (
	"github.com/spf13/cobra"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/server"
)

func newServerCommand() *cobra.Command {
	cfg, file := defaultServer(), ""
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a server in the foreground: the control plane, and pods unless --disable-agent",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := prepareServer(cmd, file, &cfg); err != nil {
				return err
			}
			return server.Run(cmd.Context(), &cfg)
		},
	}
	bindPaths(cmd.Flags(), &cfg.Paths)
	bindNode(cmd.Flags(), &cfg.Node)
	bindServer(cmd.Flags(), &cfg)
	cmd.Flags().StringVar(&file, "config", file, "YAML file whose keys are the names of these flags")
	return cmd
}

func defaultServer() config.Server {
	cfg := config.DefaultServer()
	cfg.Version, cfg.FlagValues = version, flagValues
	return cfg
}

// prepareServer reads the file given with --config, if any, completes the configuration and validates it.
func prepareServer(cmd *cobra.Command, file string, cfg *config.Server) error {
	if err := loadFile(cmd, file); err != nil {
		return err
	}
	cfg.Complete()
	return cfg.Validate()
}
