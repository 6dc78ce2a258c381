package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/process"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/raftstore"
)

func newClusterCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Operations on the whole cluster"}
	cmd.AddCommand(newResetCommand())
	return cmd
}

func newResetCommand() *cobra.Command {
	cfg, sure := config.DefaultPaths(), false
	cmd := &cobra.Command{
		Use:   "reset --yes",
		Short: "After the quorum is lost for good: continue with the data of this stopped server alone",
		Long: `Makes this stopped server the only one of its cluster, with every object that it has.
Use it when more than half of the servers are lost for good. While they may come back,
wait for them.

The cluster enters a new generation. A server of the old generation that comes back
discards its data and joins again by itself. New servers join as always. Writes that the
lost servers had acknowledged and that have not reached this server are lost: choose the
surviving server with the highest index (` + "`balsa members`" + `, or the newest log).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !sure {
				return errors.New("this discards what the other servers have and this one does not have: give --yes to do it")
			}
			return resetCluster(&cfg, cmd)
		},
	}
	bindPaths(cmd.Flags(), &cfg)
	cmd.Flags().BoolVar(&sure, "yes", sure, "confirm that the data of the other servers is discarded")
	return cmd
}

func resetCluster(cfg *config.Paths, cmd *cobra.Command) error {
	if pid := process.RunningPID(cfg.PIDFile()); pid != 0 {
		return fmt.Errorf("the server runs (process %d): stop it first", pid)
	}
	me, err := join.Load(cfg.ServerDir())
	if err != nil {
		return fmt.Errorf("this machine is no server: %w", err)
	}
	id, err := raftstore.Reset(raftstore.Config{Dir: filepath.Clean(cfg.StoreDir())})
	if err != nil {
		return err
	}
	var self []*clusterpb.ServerAddress
	for _, s := range me.Servers {
		if s.ServerId == id.ServerID {
			self = append(self, s)
		}
	}
	me.Generation, me.Servers, me.GossipAddr = id.Generation, self, ""
	if err := me.Save(cfg.ServerDir()); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "generation %d starts with this server alone: start it, then add others\n", id.Generation)
	return nil
}
