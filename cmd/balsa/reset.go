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
	cmd := &cobra.Command{Use: "cluster", Short: "What concerns the cluster as a whole"}
	cmd.AddCommand(newResetCommand())
	return cmd
}

func newResetCommand() *cobra.Command {
	cfg, sure := config.DefaultPaths(), false
	cmd := &cobra.Command{
		Use:   "reset --yes",
		Short: "After a quorum was lost for good: begin anew from this stopped server, with everything it holds",
		Long: `Makes this server, which must be stopped, the only one of its cluster, with every
object that it holds. For when more than half of the servers are lost for good;
as long as they may come back, wait for them.

The cluster enters a new generation. Servers of the old one that come back notice
it, give up their data and are members again by themselves; new ones join as
always. What the lost servers had acknowledged and not yet told this one is lost:
choose the survivor with the highest index (` + "`balsa members`" + `, or the newest log).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !sure {
				return errors.New("this gives up what the other servers have and this one has not: say --yes")
			}
			return resetCluster(&cfg, cmd)
		},
	}
	bindPaths(cmd.Flags(), &cfg)
	cmd.Flags().BoolVar(&sure, "yes", sure, "do it")
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
	fmt.Fprintf(cmd.OutOrStdout(), "generation %d begins with this server alone: start it, then add others\n", id.Generation)
	return nil
}
