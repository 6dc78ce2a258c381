package cluster

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster/archive"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
)

// Protocol is the version of the protocol between servers; it changes when older servers cannot take part. Members may
// differ by at most one version.
const Protocol = 1

// Store is the part of the replicated store that the service uses. *raftstore.Store implements it.
type Store interface {
	ServerID() string
	ClusterID() string
	Generation() int64
	Err() error
	View() *raftstore.View
	Barrier(ctx context.Context) (*raftstore.View, error)
	Txn(ctx context.Context, t raftstore.Txn) (*raftstore.TxnResult, error)
	Watch(req raftstore.WatchRequest) (*raftstore.Watcher, error)
	Servers() ([]raftstore.Server, error)
	Leader() (id string, term uint64)
	Leading() bool
	LeaderChanged() <-chan struct{}
	AddLearner(ctx context.Context, id string) error
	Promote(ctx context.Context, id string) error
	Demote(ctx context.Context, id string) error
	Remove(ctx context.Context, id string) error
	TransferLeadership(ctx context.Context, to string) error
	Progress() raftstore.Progress
	Hash() (index uint64, sum uint64)
	SaveSnapshot(ctx context.Context, w io.Writer) (raftstore.SnapshotInfo, error)
	RestoreSnapshot(ctx context.Context, r io.Reader, keep ...string) error // on the leader
}

// Membership is gossip's view of the servers. *member.Gossip implements it.
type Membership interface {
	Members() []member.Member
	Changed() <-chan struct{} // closed at the next change
}

// Nodes is this server's view of the agents, from their connections.
type Nodes interface {
	Presences() []Presence
	// Heard returns those of the nodes that are connected here and answer.
	Heard(nodes []string) []string
	Changed() <-chan struct{} // closed at the next change of Presences
}

// Presence is whether a node that has connected to this server is alive, and since when.
type Presence struct {
	Node  string
	Alive bool
	Since time.Time
}

// Settings are the settings of the whole cluster, which its first server decided. The CIDRs are one network, or one of each
// family with a comma between.
type Settings struct {
	ServiceCIDR, ClusterCIDR, ClusterDNS, ClusterDomain string
	GossipPort                                          int
	More                                                map[string]string // flags of later versions, by name
}

// networks returns the networks of Services and pods; invalid ones are left out.
func (s Settings) networks() (list []netip.Prefix) {
	for text := range strings.SplitSeq(s.ServiceCIDR+","+s.ClusterCIDR, ",") {
		if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
			list = append(list, p)
		}
	}
	return list
}

// Proto returns the settings as a message.
func (s Settings) Proto() *clusterpb.Settings {
	return &clusterpb.Settings{ServiceCidr: s.ServiceCIDR, ClusterCidr: s.ClusterCIDR, ClusterDns: s.ClusterDNS,
		ClusterDomain: s.ClusterDomain, GossipPort: int32(s.GossipPort), More: s.More}
}

// SettingsOf returns the settings in a message.
func SettingsOf(p *clusterpb.Settings) Settings {
	return Settings{ServiceCIDR: p.GetServiceCidr(), ClusterCIDR: p.GetClusterCidr(), ClusterDNS: p.GetClusterDns(),
		ClusterDomain: p.GetClusterDomain(), GossipPort: int(p.GetGossipPort()), More: p.GetMore()}
}

// Config of a Service.
type Config struct {
	Store   Store
	PKI     *pki.Authority
	Members Membership
	Nodes   Nodes
	// Name of this server's node, and what `balsa version` says.
	Name, Version string
	// Address returns the current host:port at which other members reach this server's port.
	Address func() string
	// APINames are further names and addresses by which clients know this server's API.
	APINames []string
	// Virtual returns a function that reports whether an address is a Service's or a load balancer's, for which no node gets
	// a certificate. May be nil.
	Virtual func() (func(netip.Addr) bool, error)
	// PodsHold returns the ID of the key that signed the tokens of all pods on this machine, empty when several did, and KeysChanged
	// a channel that is closed when its answer changes. Nil: no pods run here.
	PodsHold    func() string
	KeysChanged func() <-chan struct{}
	// StaleSecrets returns the names of token Secrets whose token is signed by the key with this ID. May be nil.
	StaleSecrets func(ctx context.Context, keyID string) ([]string, error)
	// Settings of the cluster, as joiners get them.
	Settings Settings
	// RecoveryKey seals the keys in snapshots; joining servers get it.
	RecoveryKey archive.Key
	// DialServer connects to another server by its ID. The caller must not close the connection.
	DialServer func(ctx context.Context, serverID string) (*grpc.ClientConn, error)
	// SpoolDir takes an archive while it is checked. MaxArchive bounds it, in bytes; default 64 GiB.
	SpoolDir   string
	MaxArchive int64
	// Left is called after this server has left the configuration at its own request. It should make gossip leave and stop
	// the process soon after Left has returned. May be nil.
	Left func()
	// Now defaults to time.Now, Logger to slog.Default().
	Now    func() time.Time
	Logger *slog.Logger
}

// Validate reports every fault at once.
func (c *Config) Validate() error {
	var errs []error
	for what, missing := range map[string]bool{
		"Store": c.Store == nil, "PKI": c.PKI == nil, "Members": c.Members == nil, "Nodes": c.Nodes == nil, "Name": c.Name == "",
		"Address": c.Address == nil, "DialServer": c.DialServer == nil, "SpoolDir": c.SpoolDir == "",
	} {
		if missing {
			errs = append(errs, errors.New("cluster: "+what+" must be set"))
		}
	}
	return errors.Join(errs...)
}

// keysChanged is closed when what this server holds of the cluster's keys changes elsewhere than here.
func (c *Config) keysChanged() <-chan struct{} {
	if c.KeysChanged == nil {
		return nil
	}
	return c.KeysChanged()
}

func (c *Config) setDefaults() {
	if c.MaxArchive == 0 {
		c.MaxArchive = 64 << 30
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}
