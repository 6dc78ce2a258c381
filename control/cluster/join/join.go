package join

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/control/atomicfile"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/archive"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/token"
)

// DefaultPort is a server's port when an address names none.
const DefaultPort = "6443"

const (
	attemptTime = 30 * time.Second // for one server to answer
	stateFile   = "member.json"
	serverIDKey = "server-id"
	caFile      = "ca.crt"
)

// Options of Join.
type Options struct {
	// Addrs are servers, host or host:port, tried in turn.
	Addrs []string
	// Token is the text of a join token; it says the role.
	Token string
	// Dir takes what is kept: of a server its data directory's server/, of an agent its agent/. A server's keys go to
	// Dir/tls.
	Dir string
	// Name of the node. Addresses are of a server the host:port others reach it at, of an agent its node's IPs.
	Name      string
	Addresses []string
	// Server says that this machine joins as a server; the token must say the same.
	Server bool
	// Version as in `balsa version`. Protocol is the program's unless it is set.
	Version  string
	Protocol int
	// Replace takes the name of an agent that is gone.
	Replace bool
	// Now defaults to time.Now, Logger to slog.Default().
	Now    func() time.Time
	Logger *slog.Logger
}

// Validate reports every fault at once; none repeats the token.
func (o *Options) Validate() error {
	var errs []error
	if len(o.Addrs) == 0 {
		errs = append(errs, errors.New("no server is named to join at: give --join HOST"))
	}
	if o.Dir == "" || o.Name == "" {
		errs = append(errs, errors.New("join needs a directory and a name"))
	}
	t, err := token.Parse(o.Token)
	if err != nil {
		errs = append(errs, err)
	} else if t.Server != o.Server {
		as := map[bool]string{true: "server", false: "agent"}
		errs = append(errs, fmt.Errorf("this token is for `balsa %s --join …`: make one with `balsa token create --role %s`", as[t.Server], as[o.Server]))
	}
	return errors.Join(errs...)
}

// Result is what a member keeps of its cluster, in Dir/member.json.
type Result struct {
	ClusterID  string                     `json:"clusterID"`
	Generation int64                      `json:"generation"`
	ServerID   string                     `json:"serverID,omitempty"`
	Name       string                     `json:"name"`
	Settings   cluster.Settings           `json:"settings"`
	Servers    []*clusterpb.ServerAddress `json:"servers"`
	GossipAddr string                     `json:"gossipAddr,omitempty"` // servers only
	GossipKeys [][]byte                   `json:"gossipKeys,omitempty"` // servers only
}

// Files of an agent below Options.Dir, in the order in which they are made.
const (
	ClientFile   = "node-client.pem"   // what the node shows to the API
	ServingFile  = "node-serving.pem"  // what the node's own API serves with
	ServicesFile = "node-services.pem" // what it shows when it reads Services
)

// CAFile is the cluster's CA in a member's directory.
func CAFile(dir string) string { return filepath.Join(dir, caFile) }

// Load reads what an earlier Join kept; os.ErrNotExist when there was none.
func Load(dir string) (*Result, error) {
	raw, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, err
	}
	r := &Result{}
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, stateFile), err)
	}
	return r, nil
}

// Save keeps r in dir: members call it when servers or keys changed.
func (r *Result) Save(dir string) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, stateFile), append(raw, '\n'))
}

// Join makes this machine a member. Everything it returns is on disk; run again after any failure it goes on. A server
// still has to start, as a peer that waits for the leader; an agent is done.
func Join(ctx context.Context, o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.setDefaults()
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	t, err := token.Parse(o.Token)
	if err != nil {
		return nil, err
	}
	k, err := o.keys()
	if err != nil {
		return nil, err
	}
	req, err := k.request(o)
	if err != nil {
		return nil, err
	}
	answer, err := ask(ctx, o, t, req)
	if err != nil {
		return nil, err
	}
	return keep(o, t, k, req, answer)
}

func (o *Options) setDefaults() {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Protocol == 0 {
		o.Protocol = cluster.Protocol
	}
}

// keys are what this machine asks certificates for; nil where its role has none.
type keys struct{ main, serving, services *pki.Credentials }

func (o *Options) keys() (k keys, err error) {
	open := func(path string) (c *pki.Credentials) {
		if err == nil {
			c, err = pki.OpenCredentials(pki.CredentialsConfig{Path: path, Now: o.Now, Logger: o.Logger})
		}
		return c
	}
	if o.Server {
		k.main = open(filepath.Join(o.Dir, "tls", "peer.pem"))
		return k, err
	}
	k.main, k.serving, k.services = open(filepath.Join(o.Dir, ClientFile)), open(filepath.Join(o.Dir, ServingFile)), open(filepath.Join(o.Dir, ServicesFile))
	return k, err
}

func (k keys) request(o Options) (*clusterpb.JoinRequest, error) {
	r := &clusterpb.JoinRequest{Token: strings.TrimSpace(o.Token), Role: clusterpb.Role_ROLE_AGENT, Name: o.Name, Addresses: o.Addresses,
		Version: o.Version, Protocol: int32(o.Protocol), Replace: o.Replace}
	var err error
	if o.Server {
		r.Role = clusterpb.Role_ROLE_SERVER
		if r.ServerId, err = ServerID(o.Dir); err != nil {
			return nil, err
		}
	} else {
		if r.ServingCsr, err = k.serving.RequestAgain(); err != nil {
			return nil, err
		}
		if r.ServicesCsr, err = k.services.RequestAgain(); err != nil {
			return nil, err
		}
	}
	r.Csr, err = k.main.RequestAgain()
	return r, err
}

// ServerID is this server's identity in its directory, made on first use and on disk before it is told to anybody.
func ServerID(dir string) (string, error) {
	path := filepath.Join(dir, serverIDKey)
	raw, err := os.ReadFile(path)
	if err == nil {
		id := strings.TrimSpace(string(raw))
		if err := pki.CheckServerID(id); err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		return id, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails: crypto/rand aborts the program instead
	id := hex.EncodeToString(b)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return id, atomicfile.Write(path, []byte(id+"\n"))
}

// ask tries one server after the other until one admits, or refuses for a reason that would be every server's.
func ask(ctx context.Context, o Options, t token.Token, req *clusterpb.JoinRequest) (*clusterpb.JoinResponse, error) {
	var errs []error
	for _, addr := range o.Addrs {
		answer, err := askOne(ctx, o, t, addr, req)
		if err == nil {
			return answer, nil
		}
		errs = append(errs, fmt.Errorf("join at %s: %w", addr, plain(err)))
		if c := status.Code(err); ctx.Err() != nil || c != codes.Unavailable && c != codes.DeadlineExceeded && c != codes.Unknown && c != codes.Unimplemented {
			break
		}
	}
	return nil, errors.Join(errs...)
}

func askOne(ctx context.Context, o Options, t token.Token, addr string, req *clusterpb.JoinRequest) (*clusterpb.JoinResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	target := withPort(addr)
	check := pki.PinnedTo(t.Pin, o.Now)
	config := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{"h2"}}
	config.VerifyConnection = func(cs tls.ConnectionState) error {
		raw := make([][]byte, len(cs.PeerCertificates))
		for i, c := range cs.PeerCertificates {
			raw[i] = c.Raw
		}
		return check(raw, nil)
	}
	conn, err := pinnedConn(ctx, target, config)
	if err != nil {
		if errors.Is(err, pki.ErrPin) {
			return nil, err
		}
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	client, err := clientOn(conn, target)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return clusterpb.NewClusterClient(client).Join(ctx, req)
}

// keep writes what was learnt, the state file last: it says that everything else is there.
func keep(o Options, t token.Token, k keys, req *clusterpb.JoinRequest, a *clusterpb.JoinResponse) (*Result, error) {
	if !slices.Contains(pki.PinsOf(a.Ca), t.Pin) {
		return nil, fmt.Errorf("the server sent another CA than the token's: %w", pki.ErrPin)
	}
	r := &Result{ClusterID: a.ClusterId, Generation: a.Generation, ServerID: req.ServerId, Name: o.Name, Settings: cluster.SettingsOf(a.Settings),
		Servers: a.Servers, GossipAddr: a.GossipAddress, GossipKeys: a.Gossip.GetKeys()}
	if o.Server {
		if err := keepServer(o, t, a); err != nil {
			return nil, err
		}
	} else {
		if err := k.serving.Install(a.ServingCertificate); err != nil {
			return nil, err
		}
		if err := k.services.Install(a.ServicesCertificate); err != nil {
			return nil, err
		}
	}
	if err := k.main.Install(a.Certificate); err != nil {
		return nil, err
	}
	if err := atomicfile.Write(CAFile(o.Dir), a.Ca); err != nil {
		return nil, err
	}
	return r, r.Save(o.Dir)
}

func keepServer(o Options, t token.Token, a *clusterpb.JoinResponse) error {
	pins, err := pki.CheckBundle(a.Bundle)
	if err != nil {
		return err
	}
	if !slices.Contains(pins, t.Pin) {
		return fmt.Errorf("the server sent the keys of another cluster than the token's: %w", pki.ErrPin)
	}
	if err := pki.WriteBundle(filepath.Join(o.Dir, "tls"), a.Bundle); err != nil {
		return err
	}
	key, err := archive.KeyOf(a.RecoveryKey)
	if err != nil {
		return err
	}
	return archive.WriteKeyFile(RecoveryKeyFile(o.Dir), key)
}

// RecoveryKeyFile is where a server keeps the cluster's recovery key.
func RecoveryKeyFile(dir string) string { return filepath.Join(dir, "recovery.key") }
