package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
)

const callTime = 20 * time.Second

// clusterClient is a client of the cluster's gRPC service. It finds the cluster as
// kubectl does: by the administrator's kubeconfig of this machine, or by another file.
type clusterClient struct {
	paths      config.Paths
	kubeconfig string
	servers    []string
}

func newClusterClient() *clusterClient { return &clusterClient{paths: config.DefaultPaths()} }

func (c *clusterClient) bind(f *pflag.FlagSet) {
	bindPaths(f, &c.paths)
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "the administrator's kubeconfig (default: the one in the data directory)")
	f.StringSliceVar(&c.servers, "server", nil, "servers to ask, as host or host:port (default: the servers that this machine knows)")
}

// connect creates a client, which dials when it is used. With local it asks only the
// server of this machine.
func (c *clusterClient) connect(local bool) (*join.Client, error) {
	path := c.kubeconfig
	if path == "" {
		path = c.paths.Kubeconfig()
	}
	admin, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("there is no %s: run this on a server, or give --kubeconfig", path)
		}
		return nil, fmt.Errorf("cannot use the administrator's kubeconfig: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(admin.CAData) {
		return nil, fmt.Errorf("%s names no certificate authority (certificate-authority-data)", path)
	}
	pair, err := tls.X509KeyPair(admin.CertData, admin.KeyData)
	if err != nil {
		return nil, fmt.Errorf("%s has no client certificate: %w", path, err)
	}
	servers := c.addresses(admin.Host, local)
	return join.NewClient(join.ClientConfig{
		Servers: func() []string { return servers }, Roots: func() *x509.CertPool { return pool },
		Certificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
	})
}

// addresses returns the servers to ask: those of --server or, without it, the
// kubeconfig's server and the servers that this machine knows.
func (c *clusterClient) addresses(host string, local bool) []string {
	if len(c.servers) > 0 {
		return c.servers
	}
	servers := []string{host}
	if u, err := url.Parse(host); err == nil && u.Host != "" {
		servers = []string{u.Host}
	}
	if local {
		return servers
	}
	if known, err := join.Load(c.paths.ServerDir()); err == nil {
		for _, a := range join.Addresses(known.Servers) {
			if !slices.Contains(servers, a) {
				servers = append(servers, a)
			}
		}
	}
	return servers
}

// call calls fn with a client of the first server that answers.
func (c *clusterClient) call(ctx context.Context, fn func(context.Context, clusterpb.ClusterClient) error) error {
	return c.callWithin(ctx, callTime, false, fn)
}

func (c *clusterClient) callWithin(ctx context.Context, limit time.Duration, local bool, fn func(context.Context, clusterpb.ClusterClient) error) error {
	client, err := c.connect(local)
	if err != nil {
		return err
	}
	defer client.Close()
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	return client.Do(ctx, fn)
}

func newTokenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Tokens with which servers and agents join the cluster"}
	cmd.AddCommand(newTokenCreateCommand(), newTokenListCommand(), newTokenRemoveCommand())
	return cmd
}

func newTokenCreateCommand() *cobra.Command {
	c, role, life, describe, uses, command, replace := newClusterClient(), "agent", cluster.DefaultTokenLife, "", int32(0), false, ""
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a token; its text is shown only once",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req := &clusterpb.CreateTokenRequest{Role: clusterpb.Role_ROLE_AGENT, TtlSeconds: int64(life / time.Second), Description: describe, Uses: uses, Replaces: replace}
			switch role {
			case "agent":
			case "server":
				req.Role = clusterpb.Role_ROLE_SERVER
			default:
				return fmt.Errorf("--role %q: give server or agent", role)
			}
			if req.TtlSeconds < 1 {
				return fmt.Errorf("--ttl %v: give a second or more, such as 24h", life)
			}
			return c.call(cmd.Context(), func(ctx context.Context, cc clusterpb.ClusterClient) error {
				answer, err := cc.CreateToken(ctx, req)
				if err != nil {
					return err
				}
				text := answer.Token
				if command {
					text = "balsa " + role + " --join " + strings.Join(join.Addresses(answer.Servers), ",") + " --token " + text
					if replace != "" {
						text += " --replace --node-name " + replace
					}
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
				return err
			})
		},
	}
	c.bind(cmd.Flags())
	cmd.Flags().StringVar(&role, "role", role, "role of machines that join with the token: server or agent")
	cmd.Flags().DurationVar(&life, "ttl", life, "how long the token is valid, at most a year")
	cmd.Flags().StringVar(&describe, "description", describe, "text that `balsa token ls` shows")
	cmd.Flags().Int32Var(&uses, "uses", uses, "how many machines may join with the token (default: any number)")
	cmd.Flags().StringVar(&replace, "replace", replace, "name of a node that is gone for good, which one agent may take over with `balsa agent --replace`; the token is valid only for that")
	cmd.Flags().BoolVar(&command, "print-command", command, "print the whole command that the joining machine runs")
	return cmd
}

func newTokenListCommand() *cobra.Command {
	c := newClusterClient()
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List tokens, without their secrets",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.call(cmd.Context(), func(ctx context.Context, cc clusterpb.ClusterClient) error {
				answer, err := cc.ListTokens(ctx, &clusterpb.ListTokensRequest{})
				if err != nil {
					return err
				}
				out := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
				fmt.Fprintln(out, "ID\tROLE\tEXPIRES\tUSED\tLEFT\tREPLACES\tDESCRIPTION")
				for _, t := range answer.Tokens {
					left := "any"
					if t.UsesLeft >= 0 {
						left = fmt.Sprint(t.UsesLeft)
					}
					fmt.Fprintf(out, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n", t.Id, roleText(t.Role), expiry(t.Expires), t.Used, left, orDash(t.Replaces), t.Description)
				}
				return out.Flush()
			})
		},
	}
	c.bind(cmd.Flags())
	return cmd
}

func expiry(ms int64) string {
	left := time.Until(time.UnixMilli(ms))
	if left <= 0 {
		return "expired"
	}
	return "in " + duration.HumanDuration(left)
}

func newTokenRemoveCommand() *cobra.Command {
	c := newClusterClient()
	cmd := &cobra.Command{
		Use:   "rm ID…",
		Short: "Revoke tokens; machines that have joined with them stay members",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			return c.call(cmd.Context(), func(ctx context.Context, cc clusterpb.ClusterClient) error {
				for _, id := range ids {
					if _, err := cc.RevokeToken(ctx, &clusterpb.RevokeTokenRequest{Id: id}); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.bind(cmd.Flags())
	return cmd
}

func roleText(r clusterpb.Role) string {
	switch r {
	case clusterpb.Role_ROLE_SERVER:
		return "server"
	case clusterpb.Role_ROLE_AGENT:
		return "agent"
	}
	return "?"
}
