package agent

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/cmd/balsa/daemon/membership"
	"github.com/balsahq/balsa/cmd/balsa/daemon/nodesetup"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/node/servers"
)

// startServerList keeps the list of servers, with a connection to each for the API's clients of this process (node/servers)
// and one for the server's requests to this node (tunnel.go).
func (a *agent) startServerList() error {
	var err error
	a.set, err = servers.New(servers.Config{Node: a.cfg.NodeName, Servers: listOf(membership.AddressBook(a.member.Get().Servers)), Logger: a.log,
		TLS: func(c *tls.Config) *tls.Config { return pki.TrustNow(c, a.trust.Pool) }})
	if err != nil {
		return err
	}
	a.parts.Keep("servers", a.set.Run)
	if err := a.startTunnel(); err != nil {
		return err
	}
	settings := a.serverTrust()
	settings.Servers = func() []string {
		var out []string
		for _, s := range a.set.Servers() {
			out = append(out, s.Addr)
		}
		return out
	}
	a.client, err = join.NewClient(settings)
	return err
}

// startLocalAPI serves the API of any live server on a port of 127.0.0.1, unless LocalAPIPort is 0.
func (a *agent) startLocalAPI() error {
	if a.cfg.LocalAPIPort == 0 {
		return nil
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(a.cfg.LocalAPIPort)))
	if err != nil {
		return fmt.Errorf("cannot listen for programs of this machine: %w; choose another --local-api-port, or 0 for none", err)
	}
	balancer, err := servers.NewBalancer(servers.BalancerConfig{Listener: listener, Set: a.set, Logger: a.log})
	if err != nil {
		listener.Close()
		return err
	}
	a.parts.Start("local API", balancer.Run)
	return nil
}

// listOf returns the servers of an address book, as if all were alive; node/servers finds out.
func listOf(book map[string]string) []servers.Server {
	var out []servers.Server
	for id, addr := range book {
		out = append(out, servers.Server{ID: id, Addr: addr, Live: true})
	}
	return out
}

// followServers keeps the list of servers, and the state of the cluster's CA and keys, as any server streams it.
func (a *agent) followServers(ctx context.Context) error {
	return a.client.FollowServers(ctx, func(answer *clusterpb.ServerList) {
		a.keys.Load().Announced(answer)
		var list []servers.Server
		for _, s := range answer.Servers {
			if s.Address != "" {
				list = append(list, servers.Server{ID: s.ServerId, Addr: s.Address, Live: s.Live})
			}
		}
		if err := a.set.Update(list); err != nil {
			a.log.Warn("cannot use the new list of servers; the old one stays in use", "err", err)
			return
		}
		a.back.Update(connectTo(list))
		a.saveServers(membership.AddressBook(answer.Servers))
	})
}

// saveServers saves the addresses of the servers for the next start.
func (a *agent) saveServers(book map[string]string) {
	if err := a.member.SetServers(book); err != nil {
		a.log.Warn("cannot save the addresses of the servers; the next start uses older ones", "err", err)
	}
}

// addresses returns the addresses for this node's serving certificate.
func (a *agent) addresses() (list []string) {
	for _, ip := range nodesetup.IPs(&a.cfg.Node, a.nodeIP) {
		list = append(list, ip.String())
	}
	return list
}

// clientFor returns a client of the API on any live server. certificate is a file with the
// client's certificate and key, which is replaced when they are renewed.
func (a *agent) clientFor(certificate string) (*rest.Config, kubernetes.Interface, error) {
	base := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: join.CAFile(a.cfg.AgentDir()), CertFile: certificate, KeyFile: certificate}}
	base.ContentType = "application/vnd.kubernetes.protobuf"
	base.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	base.QPS, base.Burst = -1, -1
	shared, err := a.set.Config(base)
	if err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfig(shared)
	return shared, client, err
}
