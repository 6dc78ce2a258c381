package server

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/lifecycle"
	"github.com/balsahq/balsa/cmd/balsa/daemon/process"
	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/leader"
	"github.com/balsahq/balsa/raftstore"
)

// clientConfigs returns a function from a user to the configuration of an in-process
// client of the API. Every write of the client carries the fence, unless it is nil.
func clientConfigs(api *control.Server, fence *raftstore.Compare) func(user string) *rest.Config {
	return func(user string) *rest.Config {
		return api.Client(control.Identity{User: user, Groups: groupsOfUser(user), Fence: fence})
	}
}

// leadership is the name of the leadership under which the controllers and the
// scheduler run. It ends leadershipTTL after the last sign of life of its holder.
const (
	leadership    = "controllers"
	leadershipTTL = 5 * time.Second
)

// startLeader competes for the leadership, and runs the controllers and the scheduler while this server has it.
func (s *server) startLeader() error {
	pods, err := config.Prefixes(s.cfg.ClusterCIDR)
	if err != nil {
		return err
	}
	pods = append(pods, netip.Prefix{}) // the second family has no network in most clusters
	signer, err := s.signer()
	if err != nil {
		return err
	}
	scheduling, err := s.cfg.Scheduler()
	if err != nil {
		return err
	}
	cfg := leader.Config{
		Elector: elector{store: s.store, api: s.api}, Identity: s.cfg.NodeName, Logger: s.log,
		APIServers: s.apiServers(), NodeLiveness: s.liveness,
		DisableCloud: s.cfg.DisableCloud, DisableLocalStorage: s.cfg.DisableLocalStorage, LoadBalancer: s.cfg.LoadBalancer(),
		ClusterCIDR: pods[0], SecondCIDR: pods[1], Keys: s.publishedKeys(), SignToken: s.api.SignToken, LegacyTokens: s.cfg.API.LegacyTokens, Certificates: signer,
		IngressStatus: s.ingressStatus, Autoscaling: s.cfg.Autoscaling, Scheduler: scheduling,
		OnTermStarted: func(int64) { s.progress.Reached(process.MilestoneLeader) },
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	s.parts.Keep("leader seen", s.awaitLeader)
	s.parts.Keep("leader", func(ctx context.Context) error {
		if !lifecycle.Await(ctx, s.api.Ready()) {
			return nil
		}
		return leader.Run(ctx, cfg)
	})
	return nil
}

// awaitLeader reports the milestone when another server leads: then the controllers
// and the scheduler run there.
func (s *server) awaitLeader(ctx context.Context) error {
	for {
		changed := s.store.LeaderChanged()
		if id, _ := s.store.Leader(); id != "" && id != s.store.ServerID() {
			s.progress.Reached(process.MilestoneLeader)
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
	<-ctx.Done()
	return nil
}

// elector connects package leader with the store, which keeps the leadership and
// refuses writes of an ended term (fencing).
type elector struct {
	store *raftstore.Store
	api   *control.Server
}

// Campaign implements leader.Elector.
func (e elector) Campaign(ctx context.Context) (leader.Term, error) {
	won, err := e.store.Campaign(ctx, leadership, e.store.ServerID(), leadershipTTL)
	if err != nil {
		return leader.Term{}, err
	}
	fence := won.Fence()
	return leader.Term{
		Epoch: won.Epoch(), Lost: won.Lost(), Resign: won.Resign,
		Config: clientConfigs(e.api, &fence),
	}, nil
}

const serviceAccountPrefix = "system:serviceaccount:"

// groupsOfUser returns the groups that the API gives an authenticated user of this name.
func groupsOfUser(user string) []string {
	rest, ok := strings.CutPrefix(user, serviceAccountPrefix)
	if !ok {
		return nil
	}
	namespace, _, _ := strings.Cut(rest, ":")
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}
}
