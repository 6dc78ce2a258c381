package pki

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/balsahq/balsa/control/atomicfile"
	"github.com/balsahq/balsa/fault"
)

// Lifetimes. A certificate is valid from Backdate before it was made, so that neither a peer whose clock is behind
// nor a clock set back by a day makes the cluster unreachable.
const (
	CALifetime   = 10 * 365 * 24 * time.Hour
	LeafLifetime = 365 * 24 * time.Hour
	Backdate     = 48 * time.Hour
	checkEvery   = time.Hour
)

// Errors of Open.
var (
	// ErrDamaged: a file of the directory cannot be read as what it should hold. The text names the file.
	ErrDamaged = errors.New("damaged file")
	// ErrClock: the system clock is outside the validity of the cluster's CA.
	ErrClock = errors.New("system clock is outside the validity of the cluster CA")
)

// Config says where the keys are and what the API server's certificate must name.
type Config struct {
	// Dir holds the files; made with mode 0700 when absent.
	Dir string
	// Names and IPs are added to the serving certificate beside the ones every cluster has.
	Names []string
	IPs   []net.IP
	// ServiceIP is the address of the kubernetes Service, in the serving certificate too.
	ServiceIP net.IP
	// ClusterDomain defaults to cluster.local.
	ClusterDomain string
	// Encryption makes the content of EncryptionFile for a new cluster; nil when a new cluster gets none.
	Encryption func() ([]byte, error)
	// Now defaults to time.Now.
	Now func() time.Time
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("pki: Dir must be set"))
	}
	for _, n := range c.Names {
		if n == "" {
			errs = append(errs, errors.New("pki: Names must not hold an empty name"))
		}
	}
	return errors.Join(errs...)
}

// Authority holds the two CAs, the leaves signed by them and the key that signs service-account tokens.
type Authority struct {
	cfg   Config
	front *caPair
	keys  atomic.Pointer[keys] // the CA and the key of tokens
	files sync.Mutex           // held while shared files are replaced or read together

	wrote   atomic.Bool // a name was made that settle has not made durable
	reserve atomic.Pointer[Reserve]
	wake    chan struct{} // of one place: Run looks at all certificates now

	changed atomic.Pointer[chan struct{}] // closed and replaced at each new certificate

	mu     sync.Mutex
	leaves map[string]*Leaf
	names  []string // of this server, beside those of every cluster
	ips    []net.IP

	server, admin, kubeletClient, frontProxyClient *Leaf
}

// Open reads the directory, or fills it when it is empty. A leaf that is missing, expired, or does not name what
// Config asks for is made anew; a CA or signing key that is damaged is an error, because replacing it would cut off
// everything that trusts it.
func Open(cfg Config) (*Authority, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("pki: directory: %w", err)
	}
	if err := finishBundle(cfg.Dir); err != nil {
		return nil, err
	}
	a := &Authority{cfg: cfg, leaves: map[string]*Leaf{}, names: cfg.Names, ips: cfg.IPs, wake: make(chan struct{}, 1)}
	a.announce()
	if err := a.openRoots(); err != nil {
		return nil, err
	}
	if err := a.checkClock(); err != nil {
		return nil, err
	}
	return a, a.openLeaves()
}

func (c Config) withDefaults() Config {
	if c.ClusterDomain == "" {
		c.ClusterDomain = "cluster.local"
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// openRoots reads or makes both CAs and the signing key. They are made together or not at all: an incomplete set
// means that somebody removed a file.
func (a *Authority) openRoots() error {
	var missing []string
	for _, n := range sharedFiles {
		if _, err := os.Stat(a.path(n)); errors.Is(err, os.ErrNotExist) {
			missing = append(missing, n)
		} else if err != nil {
			return fmt.Errorf("pki: %w", err)
		}
	}
	if len(missing) > 0 && a.hasLeaves() {
		return fmt.Errorf("pki: %s is missing while certificates made with it are there: restore it, or remove %s to make a new identity: %w",
			a.path(missing[0]), a.cfg.Dir, ErrDamaged)
	}
	if len(missing) == len(sharedFiles) && a.cfg.Encryption != nil && a.EncryptionFile() == "" {
		if err := a.makeEncryption(); err != nil {
			return err
		}
	}
	var g errgroup.Group
	var ca *caPair
	var serviceKey crypto.Signer
	g.Go(fault.ContainedErr("control/auth/pki", func() (err error) { ca, err = a.openCA("ca", "balsa-ca"); return err }))
	g.Go(fault.ContainedErr("control/auth/pki", func() (err error) { a.front, err = a.openCA("front-proxy-ca", "balsa-front-proxy-ca"); return err }))
	g.Go(fault.ContainedErr("control/auth/pki", func() (err error) { serviceKey, err = a.openKey("service-account.key"); return err }))
	if err := g.Wait(); err != nil {
		return err
	}
	others, err := a.readTrustBundle()
	if err != nil {
		return err
	}
	now := newKeys(ca, serviceKey, others)
	a.keys.Store(now)
	for name, content := range map[string][]byte{"ca.crt": now.trustPEM, "front-proxy-ca.crt": a.front.certPEM} {
		if err := a.copyOf(name, content); err != nil {
			return err
		}
	}
	return a.settle() // before any certificate that needs them
}

// makeEncryption writes EncryptionFile before there is a CA: whatever moment the power goes, a cluster that has its identity
// has the file too.
func (a *Authority) makeEncryption() error {
	data, err := a.cfg.Encryption()
	if err == nil {
		err = atomicfile.WriteContent(a.path(EncryptionFile), data)
	}
	if err == nil {
		err = atomicfile.SyncDir(a.cfg.Dir)
	}
	if err != nil {
		return fmt.Errorf("pki: make %s: %w", EncryptionFile, err)
	}
	return nil
}

// EncryptionFile is the path of that file, empty when this cluster has none.
func (a *Authority) EncryptionFile() string {
	if _, err := os.Stat(a.path(EncryptionFile)); err != nil {
		return ""
	}
	return a.path(EncryptionFile)
}

// settle makes what was written since the last time last.
func (a *Authority) settle() error {
	if !a.wrote.Swap(false) {
		return nil
	}
	if err := atomicfile.SyncDir(a.cfg.Dir); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	return nil
}

func (a *Authority) hasLeaves() bool {
	_, err := os.Stat(a.path("apiserver.pem"))
	return err == nil
}

func (a *Authority) openCA(name, cn string) (*caPair, error) {
	path := a.path(name + ".pem")
	pair, err := readCA(path)
	if errors.Is(err, os.ErrNotExist) {
		if pair, err = newCA(cn, a.cfg.Now()); err != nil {
			return nil, fmt.Errorf("pki: make %s: %w", name, err)
		}
		if err = atomicfile.WriteContent(path, pair.pem()); err != nil {
			return nil, fmt.Errorf("pki: %w", err)
		}
		a.wrote.Store(true)
	}
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return pair, nil
}

// copyOf keeps a file of public certificates as it should be.
func (a *Authority) copyOf(name string, content []byte) error {
	if have, err := os.ReadFile(a.path(name)); err == nil && bytes.Equal(have, content) {
		return nil
	}
	if err := atomicfile.WriteCopy(a.path(name), content); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	return nil
}

func (a *Authority) openKey(name string) (crypto.Signer, error) {
	key, err := readKey(a.path(name))
	if errors.Is(err, os.ErrNotExist) {
		var data []byte
		if key, data, err = newKeyPEM(); err != nil {
			return nil, fmt.Errorf("pki: make %s: %w", name, err)
		}
		err = atomicfile.WriteContent(a.path(name), data)
		a.wrote.Store(true)
	}
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return key, nil
}

// checkClock refuses to start outside the CA's validity and warns when the clock is behind the making of the CA.
func (a *Authority) checkClock() error {
	now := a.cfg.Now()
	for _, pair := range []*caPair{a.keys.Load().ca, a.front} {
		c := pair.cert
		if now.Before(c.NotBefore) || now.After(c.NotAfter) {
			return fmt.Errorf("pki: it is %s here, %q is valid from %s to %s: set the clock: %w", now.UTC().Format(time.RFC3339),
				c.Subject.CommonName, c.NotBefore.Format(time.RFC3339), c.NotAfter.Format(time.RFC3339), ErrClock)
		}
		if made := c.NotBefore.Add(Backdate); now.Before(made.Add(-time.Minute)) {
			a.cfg.Logger.Warn("the system clock is behind the moment this cluster was made; certificates and tokens work for clocks up to 48 h behind",
				"now", now.UTC(), "made", made)
		}
	}
	return nil
}

func (a *Authority) openLeaves() error {
	var g errgroup.Group
	open := func(into **Leaf, r Request) {
		g.Go(fault.ContainedErr("control/auth/pki", func() (err error) { *into, err = a.openLeaf(r); return err }))
	}
	open(&a.server, a.servingRequest())
	open(&a.admin, Request{File: "admin", CommonName: "kubernetes-admin", Organization: []string{MastersOrganization}, Usage: Client})
	open(&a.kubeletClient, Request{File: "apiserver-kubelet-client", CommonName: "kube-apiserver-kubelet-client",
		Organization: []string{MastersOrganization}, Usage: Client})
	open(&a.frontProxyClient, Request{File: "front-proxy-client", CommonName: "front-proxy-client", Usage: FrontProxy})
	if err := g.Wait(); err != nil {
		return err
	}
	return a.settle()
}

func (a *Authority) servingRequest() Request {
	d := a.cfg.ClusterDomain
	a.mu.Lock()
	names := append([]string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + d}, a.names...)
	ips := append([]net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, a.ips...)
	a.mu.Unlock()
	if a.cfg.ServiceIP != nil {
		ips = append(ips, a.cfg.ServiceIP)
	}
	return Request{File: "apiserver", CommonName: servingName, Names: names, IPs: ips, Usage: Server}
}

func (a *Authority) path(name string) string { return filepath.Join(a.cfg.Dir, name) }

// Run renews certificates when a third of their life is left, looking every hour and at each Wake, until ctx ends.
func (a *Authority) Run(ctx context.Context) error {
	t := time.NewTicker(checkEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		case <-a.wake:
		}
		if renewed, err := a.Renew(); err != nil {
			a.cfg.Logger.Error("certificates could not be renewed; the old ones stay in use", "err", err)
		} else if len(renewed) > 0 {
			a.cfg.Logger.Info("certificates renewed", "files", renewed)
		}
	}
}

// Wake lets Run look at all certificates now: the wall clock was set.
func (a *Authority) Wake() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Changed is closed when a certificate is made anew, or another key or CA counts, after the call.
func (a *Authority) Changed() <-chan struct{} { return *a.changed.Load() }

func (a *Authority) announce() {
	next := make(chan struct{})
	if last := a.changed.Swap(&next); last != nil {
		close(*last)
	}
}

// Renew makes anew every leaf that has less than a third of its life left, is not valid yet, or is signed by another CA than
// the one of now, and returns their file names. Those that cannot be written keep the old certificate; the errors are joined.
func (a *Authority) Renew() (renewed []string, err error) {
	var errs []error
	for _, l := range a.allLeaves() {
		did, err := a.renew(l)
		if err != nil {
			errs = append(errs, err)
		}
		if did {
			renewed = append(renewed, filepath.Base(l.path))
		}
	}
	return renewed, errors.Join(append(errs, a.settle())...)
}

// CA returns the certificates of the CAs that count, PEM: the one that signs first, and while the CA is rotated the other.
func (a *Authority) CA() []byte { return slices.Clone(a.keys.Load().trustPEM) }

// FrontProxyCA returns the CA that signs aggregation clients, PEM.
func (a *Authority) FrontProxyCA() []byte { return a.front.certPEM }

// CACertificate and CAKey are what a CSR signer signs with.
func (a *Authority) CACertificate() *x509.Certificate { return a.keys.Load().ca.cert }

// CAKey returns the private key of the cluster CA.
func (a *Authority) CAKey() crypto.Signer { return a.keys.Load().ca.key }

// Pool returns a new pool of the CAs that count now: ask again for each handshake.
func (a *Authority) Pool() *x509.CertPool { return a.keys.Load().pool.Clone() }

// ClientVerifyOptions is what k8s.io/apiserver's x509 authenticator asks for.
func (a *Authority) ClientVerifyOptions() (x509.VerifyOptions, bool) {
	return a.verifyOptions(a.keys.Load().pool), true
}

// FrontProxyVerifyOptions is the same for the request-header authenticator.
func (a *Authority) FrontProxyVerifyOptions() (x509.VerifyOptions, bool) {
	return a.verifyOptions(a.front.pool), true
}

func (a *Authority) verifyOptions(roots *x509.CertPool) x509.VerifyOptions {
	return x509.VerifyOptions{Roots: roots, CurrentTime: a.cfg.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}

// Serving is the API server's certificate.
func (a *Authority) Serving() *Leaf { return a.server }

// Admin is the administrator's client certificate (group system:masters).
func (a *Authority) Admin() *Leaf { return a.admin }

// KubeletClient is what the API server shows to kubelets.
func (a *Authority) KubeletClient() *Leaf { return a.kubeletClient }

// FrontProxyClient is what the API server shows to aggregated API servers.
func (a *Authority) FrontProxyClient() *Leaf { return a.frontProxyClient }

// ServiceAccountKey signs service-account tokens (ECDSA P-256, ES256).
func (a *Authority) ServiceAccountKey() crypto.Signer { return a.keys.Load().signer }

// SetSubjects replaces Config.Names and IPs: this server is reached under others now. The serving certificate is made
// anew when it does not carry them all, and is in use at once; connections that stand are not touched.
func (a *Authority) SetSubjects(names []string, ips []net.IP) error {
	a.mu.Lock()
	a.names, a.ips = slices.Clone(names), slices.Clone(ips)
	a.mu.Unlock()
	_, err := a.Leaf(a.servingRequest())
	return err
}

// Peer returns the certificate with which this server meets other servers, in both directions, made on first use.
func (a *Authority) Peer(serverID string) (*Leaf, error) {
	if err := CheckServerID(serverID); err != nil {
		return nil, err
	}
	return a.Leaf(peerRequest(serverID))
}

func peerRequest(serverID string) Request {
	return Request{File: "peer", CommonName: ServerPrefix + serverID, Organization: []string{ServersOrganization},
		Names: []string{ServerName(serverID)}, Usage: Peer}
}

// NodeServing returns the certificate a node's kubelet API serves with, made on first use.
func (a *Authority) NodeServing(node string, names []string, ips []net.IP) (*Leaf, error) {
	return a.Leaf(nodeServingRequest(node, names, ips))
}

func nodeServingRequest(node string, names []string, ips []net.IP) Request {
	return Request{File: "node-" + node + "-serving", CommonName: NodePrefix + node, Organization: []string{NodesOrganization},
		Names: append([]string{node, "localhost"}, names...), IPs: append([]net.IP{net.IPv4(127, 0, 0, 1)}, ips...), Usage: Server}
}

// NodeClient returns the certificate a node shows to the API server, made on first use.
func (a *Authority) NodeClient(node string) (*Leaf, error) { return a.Leaf(nodeClientRequest(node)) }

func nodeClientRequest(node string) Request {
	return Request{File: "node-" + node + "-client", CommonName: NodePrefix + node, Organization: []string{NodesOrganization}, Usage: Client}
}
