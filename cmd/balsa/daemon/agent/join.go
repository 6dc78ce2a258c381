package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/balsahq/balsa/cmd/balsa/daemon/membership"
	"github.com/balsahq/balsa/control/cluster/join"
)

// openMembership joins the cluster of --join at the first start. Later starts read the saved record. The cluster's settings
// are put into the configuration.
func (a *agent) openMembership(ctx context.Context) error {
	dir := a.cfg.AgentDir()
	r, err := join.Load(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if len(a.cfg.Join) == 0 {
			return errors.New("this machine is no member of a cluster yet: give --join HOST and --token TOKEN, from `balsa token create --role agent` on a server")
		}
		var token string
		if token, err = a.cfg.JoinToken(); err != nil {
			return err
		}
		a.log.Info("joining the cluster", "at", a.cfg.Join)
		r, err = join.Join(ctx, join.Options{
			Addrs: a.cfg.Join, Token: token, Dir: dir, Name: a.cfg.NodeName, Addresses: a.addresses(),
			Version: a.cfg.Version, Replace: a.cfg.Replace, Logger: a.log,
		})
	}
	if err != nil {
		return err
	}
	if r.Name != a.cfg.NodeName {
		return fmt.Errorf("this machine joined as %s: start it with --node-name %s, or remove %s to join anew", r.Name, r.Name, dir)
	}
	a.member = membership.New(dir, r)
	if err := membership.Agree(&a.cfg.Cluster, r.Settings); err != nil {
		return err
	}
	if a.trust, err = join.OpenTrust(dir); err != nil {
		return err
	}
	if a.creds, err = join.OpenAgent(dir, nil, a.log); err != nil {
		return err
	}
	if !a.creds.Client.Valid() {
		a.log.Warn("this node's certificate is not valid now; the servers renew it when they have its key on record", "directory", dir)
	}
	return nil
}
