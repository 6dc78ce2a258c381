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
	// ErrDamaged means that a file of the directory cannot be parsed. The wrapping error names the file.
	ErrDamaged = errors.New("damaged file")
	// ErrClock means that the system clock is outside the validity of the cluster's CA.
	ErrClock = errors.New("system clock is outside the validity of the cluster CA")
)

// Config configures an Authority.
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
	// Encryption returns the content of EncryptionFile for a new cluster; nil if a new cluster gets none.
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

	wrote   atomic.Bool // a file was created or renamed and settle has not synced the directory yet
	reserve atomic.Pointer[Reserve]
	wake    chan struct{} // buffered, capacity 1: wakes Run to check all certificates

	changed atomic.Pointer[chan struct{}] // closed and replaced at each new certificate

	mu     sync.Mutex
	leaves map[string]*Leaf
	names  []string // of this server, beside those of every cluster
	ips    []net.IP

	server, admin, kubeletClient, frontProxyClient *Leaf
}

// Open reads the directory, or fills it if it is empty. A leaf that is missing, expired or without the names of Config is
// issued again. A damaged CA or signing key is an error, because replacing it would cut off all clients that trust it.
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

// openRoots reads or makes both CAs and the signing key. They are made together or not at all, so an incomplete set means
// that a file was removed.
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

// makeEncryption writes EncryptionFile before there is a CA, so that after a crash at any moment a cluster that has a CA
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

// EncryptionFile returns the path of that file, empty if this cluster has none.
func (a *Authority) EncryptionFile() string {
	if _, err := os.Stat(a.path(EncryptionFile)); err != nil {
		return ""
	}
	return a.path(EncryptionFile)
}

// settle syncs the directory, so that the files written since the last call are durable.
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

// copyOf writes a file of public certificates unless it has the content already.
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

// checkClock returns an error if the clock is outside the CA's validity, and warns if it is before the CA's creation.
func (a *Authority) checkClock() error {
	now := a.cfg.Now()
	for _, pair := range []*caPair{a.keys.Load().ca, a.front} {
		c := pair.cert
		if now.Before(c.NotBefore) || now.After(c.NotAfter) {
			return fmt.Errorf("pki: it is %s here, %q is valid from %s to %s: set the clock: %w", now.UTC().Format(time.RFC3339),
				c.Subject.CommonName, c.NotBefore.Format(time.RFC3339), c.NotAfter.Format(time.RFC3339), ErrClock)
		}
		if made := c.NotBefore.Add(Backdate); now.Before(made.Add(-time.Minute)) {
			a.cfg.Logger.Warn("the system clock is before the creation of this cluster; certificates and tokens work for clocks up to 48 h behind",
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

// Run renews certificates that have less than a third of their life left. It checks every hour and at each Wake, until ctx
// ends.
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
			a.cfg.Logger.Error("cannot renew certificates; the old ones stay in use", "err", err)
		} else if len(renewed) > 0 {
			a.cfg.Logger.Info("certificates renewed", "files", renewed)
		}
	}
}

// Wake makes Run check all certificates now. It is for changes of the wall clock.
func (a *Authority) Wake() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Changed returns a channel that is closed at the next renewal of a certificate or change of the trusted keys and CAs.
func (a *Authority) Changed() <-chan struct{} { return *a.changed.Load() }

func (a *Authority) announce() {
	next := make(chan struct{})
	if last := a.changed.Swap(&next); last != nil {
		close(*last)
	}
}

// Renew renews every leaf that has less than a third of its life left, is not valid yet, or is not signed by the current
// CA, and returns their file names. A leaf that cannot be written keeps the old certificate; the errors are joined.
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

// CA returns the certificates of the trusted CAs in PEM: the signing CA first, and during a rotation the other one.
func (a *Authority) CA() []byte { return slices.Clone(a.keys.Load().trustPEM) }

// FrontProxyCA returns the CA that signs aggregation clients, PEM.
func (a *Authority) FrontProxyCA() []byte { return a.front.certPEM }

// CACertificate returns the certificate of the cluster CA, which signs CertificateSigningRequests.
func (a *Authority) CACertificate() *x509.Certificate { return a.keys.Load().ca.cert }

// CAKey returns the private key of the cluster CA.
func (a *Authority) CAKey() crypto.Signer { return a.keys.Load().ca.key }

// Pool returns a new pool of the CAs that are trusted now. Call it for each handshake.
func (a *Authority) Pool() *x509.CertPool { return a.keys.Load().pool.Clone() }

// ClientVerifyOptions is the function for k8s.io/apiserver's x509 authenticator.
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

// KubeletClient is the API server's client certificate for kubelets.
func (a *Authority) KubeletClient() *Leaf { return a.kubeletClient }

// FrontProxyClient is the API server's client certificate for aggregated API servers.
func (a *Authority) FrontProxyClient() *Leaf { return a.frontProxyClient }

// ServiceAccountKey signs service-account tokens (ECDSA P-256, ES256).
func (a *Authority) ServiceAccountKey() crypto.Signer { return a.keys.Load().signer }

// SetSubjects replaces Config.Names and IPs, after this server's addresses have changed. The serving certificate is issued
// again if it lacks one of them and is used at once; existing connections are not affected.
func (a *Authority) SetSubjects(names []string, ips []net.IP) error {
	a.mu.Lock()
	a.names, a.ips = slices.Clone(names), slices.Clone(ips)
	a.mu.Unlock()
	_, err := a.Leaf(a.servingRequest())
	return err
}

// Peer returns this server's certificate for connections with other servers in both directions. It is issued at the first
// call.
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

// NodeServing returns the serving certificate of a node's kubelet API. It is issued at the first call.
func (a *Authority) NodeServing(node string, names []string, ips []net.IP) (*Leaf, error) {
	return a.Leaf(nodeServingRequest(node, names, ips))
}

func nodeServingRequest(node string, names []string, ips []net.IP) Request {
	return Request{File: "node-" + node + "-serving", CommonName: NodePrefix + node, Organization: []string{NodesOrganization},
		Names: append([]string{node, "localhost"}, names...), IPs: append([]net.IP{net.IPv4(127, 0, 0, 1)}, ips...), Usage: Server}
}

// NodeClient returns a node's client certificate for the API server. It is issued at the first call.
func (a *Authority) NodeClient(node string) (*Leaf, error) { return a.Leaf(nodeClientRequest(node)) }

func nodeClientRequest(node string) Request {
	return Request{File: "node-" + node + "-client", CommonName: NodePrefix + node, Organization: []string{NodesOrganization}, Usage: Client}
}
