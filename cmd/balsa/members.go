package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
)

func newMembersCommand() *cobra.Command {
	c := newClusterClient()
	list := func(cmd *cobra.Command, _ []string) error {
		return c.call(cmd.Context(), func(ctx context.Context, cc clusterpb.ClusterClient) error {
			answer, err := cc.Members(ctx, &clusterpb.MembersRequest{})
			if err != nil {
				return err
			}
			return printMembers(cmd.OutOrStdout(), answer, time.Now())
		})
	}
	cmd := &cobra.Command{Use: "members", Short: "Servers and agents: which one leads, votes, lags, is gone", Args: cobra.NoArgs, RunE: list}
	ls := &cobra.Command{Use: "ls", Short: "List the members", Args: cobra.NoArgs, RunE: list}
	c.bind(cmd.PersistentFlags())
	cmd.AddCommand(ls, newPromoteCommand(c), newDemoteCommand(c), newRemoveCommand(c), newTransferCommand(c), newLeaveCommand(c), newRotateCommand(c))
	return cmd
}

func printMembers(w io.Writer, answer *clusterpb.MembersResponse, now time.Time) error {
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(out, "NAME\tID\tROLE\tSTATE\tLEADER\tLAG\tSINCE\tADDRESS\tVERSION\tNOTE")
	for _, m := range answer.Members {
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.Name, orDash(m.ServerId[:min(8, len(m.ServerId))]), memberRole(m), stateText(m.State),
			map[bool]string{true: "yes", false: "-"}[m.Leader], lagText(m), sinceText(m.Since, now), orDash(m.Address), orDash(m.Version), m.Note)
	}
	if answer.LeaderId == "" {
		fmt.Fprintln(out, "there is no leader: too few voters are alive, or an election is under way")
	}
	return out.Flush()
}

// memberRole returns the role of a member; for servers, whether it votes.
func memberRole(m *clusterpb.Member) string {
	switch {
	case m.Role != clusterpb.Role_ROLE_SERVER:
		return roleText(m.Role)
	case m.Voter:
		return "voter"
	case m.Member:
		return "learner"
	}
	return "server"
}

func stateText(s clusterpb.State) string {
	switch s {
	case clusterpb.State_STATE_ALIVE:
		return "alive"
	case clusterpb.State_STATE_SUSPECT:
		return "suspect"
	case clusterpb.State_STATE_FAILED:
		return "failed"
	case clusterpb.State_STATE_LEFT:
		return "left"
	}
	return "unknown"
}

func lagText(m *clusterpb.Member) string {
	if m.Role != clusterpb.Role_ROLE_SERVER {
		return "-"
	}
	if m.Lag < 0 {
		return "?"
	}
	return fmt.Sprint(m.Lag)
}

func sinceText(ms int64, now time.Time) string {
	if ms == 0 {
		return "-"
	}
	return duration.HumanDuration(max(0, now.Sub(time.UnixMilli(ms))))
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func newPromoteCommand(c *clusterClient) *cobra.Command {
	force := false
	cmd := &cobra.Command{
		Use: "promote SERVER", Short: "Give a learner a vote", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.call(cmd.Context(), func(ctx context.Context, cc clusterpb.ClusterClient) error {
				_, err := cc.Promote(ctx, &clusterpb.PromoteRequest{Server: args[0], Force: force})
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", force, "also when the number of voters becomes even")
	return cmd
}

func newDemoteCommand(c *clusterClient) *cobra.Command {
	return &cobra.Command{
		Use: "demote SERVER", Short: "Take the vote from a voter, which becomes a learner", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.call(cmd.Context(), func(ctx context.Context, cc clusterpb.ClusterClient) error {
				_, err := cc.Demote(ctx, &clusterpb.DemoteRequest{Server: args[0]})
				return err
			})
		},
	}
}

func newRemoveCommand(c *clusterClient) *cobra.Command {
	force := false
	cmd := &cobra.Command{
		Use: "remove MEMBER", Aliases: []string{"rm"}, Short: "Remove a member for good; it needs a token to join again", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.call(cmd.Context(), func(ctx context.Context, cc clusterpb.ClusterClient) error {
				_, err := cc.Remove(ctx, &clusterpb.RemoveRequest{Member: args[0], Force: force})
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", force, "also when the member is alive")
	return cmd
}

func newTransferCommand(c *clusterClient) *cobra.Command {
	return &cobra.Command{
		Use: "transfer [SERVER]", Short: "Move the leadership to a voter (default: the one with the newest log)", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &clusterpb.TransferRequest{}
			if len(args) == 1 {
				req.Server = args[0]
			}
			return c.call(cmd.Context(), func(ctx context.Context, cc clusterpb.ClusterClient) error {
				_, err := cc.Transfer(ctx, req)
				return err
			})
		},
	}
}

func newLeaveCommand(c *clusterClient) *cobra.Command {
	return &cobra.Command{
		Use: "leave", Short: "Remove the server of this machine from the cluster, and stop it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.callWithin(cmd.Context(), callTime, true, func(ctx context.Context, cc clusterpb.ClusterClient) error {
				status, err := cc.Status(ctx, &clusterpb.StatusRequest{})
				if err != nil {
					return err
				}
				if _, err = cc.Leave(ctx, &clusterpb.LeaveRequest{ServerId: status.ServerId}); err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "server %s (%.8s) has left the cluster; remove %s before it joins again\n", status.Name, status.ServerId, c.paths.ServerDir())
				return err
			})
		},
	}
}

func newRotateCommand(c *clusterClient) *cobra.Command {
	return &cobra.Command{
		Use: "rotate-key", Short: "Start the change to a new gossip key, which all servers take over by themselves", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.call(cmd.Context(), func(ctx context.Context, cc clusterpb.ClusterClient) error {
				_, err := cc.RotateGossipKey(ctx, &clusterpb.RotateGossipKeyRequest{})
				return err
			})
		},
	}
}
