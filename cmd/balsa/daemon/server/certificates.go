package server

import (
	"context"
	"crypto/x509"
	"errors"
	"net/netip"
	"slices"
	"time"

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

// openClientCAs reads whose clients the API believes beside the cluster's.
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

// clientHints are the authorities whose certificates REST's clients may show.
func (s *server) clientHints() *x509.CertPool {
	pool := s.pki.Pool()
	if s.clients != nil {
		for _, c := range s.clients.Certificates() {
			pool.AddCert(c)
		}
	}
	return pool
}

// signer signs what is approved at the API; which names and addresses nobody
// gets, the cluster's service has told the authority.
func (s *server) signer() (certificates.Authority, error) {
	c := s.cfg.API.Certificates
	issuer, err := s.pki.Issuer(pki.IssuerConfig{CertFile: c.SigningCert, KeyFile: c.SigningKey})
	if err != nil {
		return certificates.Authority{}, err
	}
	return signing.Authority(issuer, c.SigningLife), nil
}

// virtualAddresses tells the addresses of Services and load balancers from
// machines'. Few certificates are signed, so it lists the Services each time.
func (s *server) virtualAddresses() (func(netip.Addr) bool, error) {
	if s.api == nil {
		return nil, errors.New("the API has not started yet")
	}
	client, err := kubernetes.NewForConfig(s.api.Client(control.Identity{User: "balsa:certificates", Groups: []string{"system:masters"}}))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), virtualPatience)
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

const virtualPatience = 10 * time.Second

// balancerPools are the addresses that load balancers may get.
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
	if err != nil { // of the ConfigMap, which the controller reports; it gives out no address of it
		return nil, nil
	}
	return pools, nil
}

// refuse says of a node's certificate that the node was removed.
func (s *server) refuse(c *x509.Certificate) error { return cluster.Revoked(s.store.View(), c) }
