package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/raftstore"
)

// membership is what a server keeps of its cluster between runs: who it is, what
// all servers agree on, where the others were last. It lies in
// server/member.json, beside the keys.
type membership struct {
	dir string

	mu sync.Mutex
	r  *join.Result
}

func (c *config) storeDir() string { return filepath.Join(c.serverDir(), "raft") }

// openMembership finds out which cluster this server is of: the one it was of
// before, the one it is told to join, or a new one.
func openMembership(ctx context.Context, cfg *config, address string, log *slog.Logger) (*membership, error) {
	m := &membership{dir: cfg.serverDir()}
	r, err := join.Load(m.dir)
	switch {
	case err == nil:
		if len(cfg.Join) > 0 {
			log.Info("this server is a member already; --join is not needed any more", "cluster", r.ClusterID)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	default:
		if r, err = m.begin(ctx, cfg, address, log); err != nil {
			return nil, err
		}
	}
	m.r = r
	return m, cfg.agree(r.Settings)
}

// begin is a first start, or the first of a program that knows of several
// servers.
func (m *membership) begin(ctx context.Context, cfg *config, address string, log *slog.Logger) (*join.Result, error) {
	old, err := raftstore.ReadIdentity(cfg.storeDir())
	if err == nil {
		return &join.Result{ClusterID: old.ClusterID, Generation: old.Generation, ServerID: old.ServerID, Name: cfg.NodeName, Settings: cfg.settings()}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := objectsMissing(cfg); err != nil {
		return nil, err
	}
	if len(cfg.Join) > 0 {
		token, err := cfg.token()
		if err != nil {
			return nil, err
		}
		log.Info("joining the cluster", "at", cfg.Join)
		return join.Join(ctx, join.Options{
			Addrs: cfg.Join, Token: token, Dir: m.dir, Name: cfg.NodeName, Addresses: []string{address}, Server: true, Version: version, Logger: log,
		})
	}
	id, err := join.ServerID(m.dir)
	if err != nil {
		return nil, err
	}
	return &join.Result{ClusterID: raftstore.NewID(), Generation: 1, ServerID: id, Name: cfg.NodeName, Settings: cfg.settings()}, nil
}

// get returns a copy.
func (m *membership) get() join.Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *m.r
}

// update changes what is kept, and writes it when that is something new.
func (m *membership) update(change func(*join.Result) bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := *m.r
	if !change(&next) {
		return nil
	}
	if err := next.Save(m.dir); err != nil {
		return fmt.Errorf("keep what is known of the cluster: %w", err)
	}
	m.r = &next
	return nil
}

// learn keeps where the servers are.
func (m *membership) learn(addrs map[string]string) error {
	list := make([]*clusterpb.ServerAddress, 0, len(addrs))
	for _, id := range slices.Sorted(maps.Keys(addrs)) {
		list = append(list, &clusterpb.ServerAddress{ServerId: id, Address: addrs[id]})
	}
	return m.update(func(r *join.Result) bool {
		if maps.Equal(addressBook(r.Servers), addrs) {
			return false
		}
		r.Servers = list
		return true
	})
}

func (m *membership) keepKeys(keys [][]byte) error {
	return m.update(func(r *join.Result) bool {
		if slices.EqualFunc(r.GossipKeys, keys, slices.Equal[[]byte]) {
			return false
		}
		r.GossipKeys = keys
		return true
	})
}

// addressBook is a list of servers by ID.
func addressBook(list []*clusterpb.ServerAddress) map[string]string {
	book := map[string]string{}
	for _, s := range list {
		if s.Address != "" {
			book[s.ServerId] = s.Address
		}
	}
	return book
}

// settings are what this server's flags say of the whole cluster.
func (c *config) settings() cluster.Settings {
	return cluster.Settings{ServiceCIDR: c.ServiceCIDR, ClusterCIDR: c.ClusterCIDR, ClusterDNS: c.ClusterDNS, ClusterDomain: c.ClusterDomain, GossipPort: c.GossipPort}
}

// agree takes over what the cluster was begun with. A flag that says otherwise
// is refused: it would have no effect.
func (c *config) agree(s cluster.Settings) error {
	usual := defaultConfig()
	var faults []error
	for _, f := range []struct {
		flag              string
		mine              *string
		theirs, byDefault string
	}{
		{"service-cidr", &c.ServiceCIDR, s.ServiceCIDR, usual.ServiceCIDR},
		{"cluster-cidr", &c.ClusterCIDR, s.ClusterCIDR, usual.ClusterCIDR},
		{"cluster-dns", &c.ClusterDNS, s.ClusterDNS, usual.ClusterDNS},
		{"cluster-domain", &c.ClusterDomain, s.ClusterDomain, usual.ClusterDomain},
	} {
		if f.theirs == "" || *f.mine == f.theirs {
			continue
		}
		if *f.mine != f.byDefault {
			faults = append(faults, fmt.Errorf("--%s %s: this cluster was begun with %s, which cannot be changed; leave the flag out", f.flag, *f.mine, f.theirs))
		}
		*f.mine = f.theirs
	}
	if s.GossipPort != 0 {
		c.GossipPort = s.GossipPort
	}
	return errors.Join(faults...)
}

// token is the join token, from the flag, or from the file that keeps it out of
// the list of processes.
func (c *config) token() (string, error) {
	switch {
	case c.Token == "" && c.TokenFile == "":
		return "", errors.New("--join needs --token or --token-file: `balsa token create` on a server makes one")
	case c.TokenFile == "":
		return c.Token, nil
	case c.Token != "":
		return "", errors.New("give --token or --token-file, not both")
	}
	raw, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return "", fmt.Errorf("read the join token: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}
