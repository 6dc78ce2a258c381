package server

import (
	"net"
	"path/filepath"

	"context"
	"crypto/x509"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/nodesetup"
	"github.com/balsahq/balsa/cmd/balsa/daemon/wallclock"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/balsahq/balsa/cmd/balsa/daemon/signing"
	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/leader/certificates"
	"github.com/balsahq/balsa/leader/loadbalancer"
)

// startCertificates opens the cluster's authority and this server's certificates, which are renewed before they expire, and
// checked again when the wall clock is set.
func (s *server) startCertificates() error {
	services, err := config.Prefixes(s.cfg.ServiceCIDR)
	if err != nil {
		return err
	}
	names, ips := s.certificateSubjects(s.advertise)
	s.pki, err = pki.Open(pki.Config{
		Dir: filepath.Join(s.cfg.ServerDir(), "tls"), Names: names, IPs: ips,
		ServiceIP: services[0].Addr().Next().AsSlice(), ClusterDomain: s.cfg.ClusterDomain, Encryption: newEncryption(&s.cfg.API), Logger: s.log,
	})
	if err != nil {
		return err
	}
	if err := encryptWith(&s.cfg.API, s.pki.EncryptionFile()); err != nil {
		return err
	}
	s.parts.Keep("certificates", s.pki.Run)
	s.clock = wallclock.New(s.log)
	s.clock.Notify(s.pki.Wake)
	s.parts.Keep("clock", s.clock.Run)
	return s.openClientCAs()
}

// certificateSubjects returns the names and addresses for the API's certificate, beside
// those that it has in every cluster.
func (s *server) certificateSubjects(advertise netip.Addr) (names []string, ips []net.IP) {
	names = []string{s.cfg.NodeName}
	ips = append([]net.IP{advertise.AsSlice(), s.nodeIP.AsSlice()}, nodesetup.IPs(&s.cfg.Node, s.nodeIP)...)
	for _, san := range s.cfg.TLSSANs {
		if ip := net.ParseIP(san); ip != nil {
			ips = append(ips, ip)
		} else {
			names = append(names, san)
		}
	}
	return names, ips
}

// apiNames returns the names and addresses by which clients know this server's API.
// Certificates of other machines must not have them.
func (s *server) apiNames() []string {
	names, ips := s.certificateSubjects(s.advertise)
	for _, ip := range ips {
		names = append(names, ip.String())
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// openClientCAs reads the authorities of --client-ca-file, whose clients the API trusts beside the cluster's own, and follows
// the file.
func (s *server) openClientCAs() error {
	file := s.cfg.API.Certificates.ClientCAFile
	if file == "" {
		return nil
	}
	var err error
	if s.clients, err = pki.OpenTrust(file, s.log); err != nil {
		return err
	}
	s.parts.Keep("clients' authorities", s.clients.Run)
	return nil
}

// clientHints returns the authorities that the API's port names in its TLS handshake: clients of REST show certificates of
// these.
func (s *server) clientHints() *x509.CertPool {
	pool := s.pki.Pool()
	if s.clients != nil {
		for _, c := range s.clients.Certificates() {
			pool.AddCert(c)
		}
	}
	return pool
}

// signer returns the authority that signs approved CertificateSigningRequests. It
// refuses names and addresses that no certificate may have (control/cluster/reserve.go).
func (s *server) signer() (certificates.Authority, error) {
	c := s.cfg.API.Certificates
	issuer, err := s.pki.Issuer(pki.IssuerConfig{CertFile: c.SigningCert, KeyFile: c.SigningKey})
	if err != nil {
		return certificates.Authority{}, err
	}
	return signing.Authority(issuer, c.SigningLife), nil
}

// virtualAddresses returns a function that reports whether an address belongs to a
// Service or to a load balancer, and so to no machine. It lists all Services each
// time, which is cheap enough because few certificates are signed.
func (s *server) virtualAddresses() (func(netip.Addr) bool, error) {
	if s.api == nil {
		return nil, errors.New("the API has not started yet")
	}
	client, err := kubernetes.NewForConfig(s.api.Client(control.Identity{User: "balsa:certificates", Groups: []string{"system:masters"}}))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), virtualAddressesTimeout)
	defer cancel()
	list, err := client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pools, err := s.balancerPools(ctx, client)
	if err != nil {
		return nil, err
	}
	taken := map[netip.Addr]bool{}
	add := func(text string) {
		if a, err := netip.ParseAddr(text); err == nil {
			taken[a.Unmap()] = true
		}
	}
	for i := range list.Items {
		svc := &list.Items[i]
		for _, text := range slices.Concat(svc.Spec.ClusterIPs, svc.Spec.ExternalIPs) {
			add(text)
		}
		for _, in := range svc.Status.LoadBalancer.Ingress {
			add(in.IP)
		}
	}
	return func(a netip.Addr) bool { return taken[a] || pools.Contains(a) }, nil
}

const virtualAddressesTimeout = 10 * time.Second

// balancerPools returns the addresses that load balancers may get: those of the ConfigMap or, without one, of the flag.
func (s *server) balancerPools(ctx context.Context, client kubernetes.Interface) (loadbalancer.Pools, error) {
	text := s.cfg.LoadBalancerPool
	configured, err := client.CoreV1().ConfigMaps(loadbalancer.ConfigNamespace).Get(ctx, loadbalancer.ConfigName, metav1.GetOptions{})
	switch {
	case err == nil:
		text = configured.Data[loadbalancer.ConfigKey]
	case !apierrors.IsNotFound(err):
		return nil, err
	}
	pools, err := loadbalancer.ParsePools(text, nil)
	if err != nil { // the controller of load balancers reports a wrong ConfigMap, and uses no address of it
		return nil, nil
	}
	return pools, nil
}

// checkRevoked returns an error for the certificate of a node that was removed.
func (s *server) checkRevoked(c *x509.Certificate) error { return cluster.Revoked(s.store.View(), c) }
