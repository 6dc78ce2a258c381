package main

import (
	"github.com/spf13/cobra"

	"github.com/balsahq/balsa/cmd/balsa/daemon/agent"
	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
)

func newAgentCommand() *cobra.Command {
	cfg, file := config.DefaultAgent(), ""
	cfg.Version = version
	cmd := &cobra.Command{
		Use:   "agent --join HOST --token TOKEN",
		Short: "Run a node that takes pods, in the foreground; --join and --token are needed the first time",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := loadFile(cmd, file); err != nil {
				return err
			}
			if err := cfg.Validate(); err != nil {
				return err
			}
			return agent.Run(cmd.Context(), &cfg)
		},
	}
	bindPaths(cmd.Flags(), &cfg.Paths)
	bindNode(cmd.Flags(), &cfg.Node)
	bindJoin(cmd.Flags(), &cfg.Node)
	cmd.Flags().IntVar(&cfg.LocalAPIPort, "local-api-port", cfg.LocalAPIPort, "port on 127.0.0.1 at which programs of this machine reach the API on whichever server lives; 0 for none")
	cmd.Flags().BoolVar(&cfg.Replace, "replace", cfg.Replace, "take the name of a node that is gone for good; needs a token of `balsa token create --replace NODE`")
	cmd.Flags().StringVar(&file, "config", file, "YAML file whose keys are the names of these flags")
	return cmd
}
