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
		Short: "Run a node without a control plane in the foreground; the first start needs --join and --token",
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
	cmd.Flags().IntVar(&cfg.LocalAPIPort, "local-api-port", cfg.LocalAPIPort, "port on 127.0.0.1 at which programs of this machine reach the API of any live server; 0 for none")
	cmd.Flags().BoolVar(&cfg.Replace, "replace", cfg.Replace, "join under the name of a node that is gone for good; needs a token of `balsa token create --replace NODE`")
	cmd.Flags().StringVar(&file, "config", file, "YAML file whose keys are the names of these flags")
	return cmd
}
