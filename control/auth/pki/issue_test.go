package pki

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/balsahq/balsa/control/atomicfile"
)

func parsed(t *testing.T, certPEM []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(certPEM)
	if block == nil {
		t.Fatal("no PEM")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func wanted(t *testing.T, usage x509.ExtKeyUsage, change func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	key, _, err := newKeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{Subject: pkix.Name{CommonName: "jane", Organization: []string{"devs"}}, PublicKey: key.Public(),
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}}
	if change != nil {
		change(c)
	}
	return c
}

func issuer(t *testing.T, a *Authority, cfg IssuerConfig) *Issuer {
	t.Helper()
	i, err := a.Issuer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestWhatIsIssuedIsGoodForItsUseAlone(t *testing.T) {
	a := open(t, Config{Dir: t.TempDir()})
	i := issuer(t, a, IssuerConfig{})
	certPEM, err := i.Sign(wanted(t, x509.ExtKeyUsageClientAuth, func(c *x509.Certificate) {
		c.ExtraExtensions = []pkix.Extension{{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}}} // CA:TRUE
	}))
	if err != nil {
		t.Fatal(err)
	}
	c := parsed(t, certPEM)
	opts, _ := a.ClientVerifyOptions()
	if _, err := c.Verify(opts); err != nil || c.IsCA || c.Subject.CommonName != "jane" {
		t.Errorf("%v, %+v", err, c.Subject)
	}
	opts.KeyUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	if _, err := c.Verify(opts); err == nil {
		t.Error("a client's certificate serves")
	}
	far := wanted(t, x509.ExtKeyUsageClientAuth, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(2 * CALifetime) })
	if certPEM, err = i.Sign(far); err != nil || !parsed(t, certPEM).NotAfter.Equal(a.CACertificate().NotAfter) {
		t.Errorf("%v: it outlives its CA", err)
	}
}

// reserveSome gives names and addresses to another server, a load balancer and two nodes.
func reserveSome(a *Authority) {
	a.Reserve(Reserve{
		Hosts:    func() []string { return []string{"192.0.2.2", "second.example"} },
		Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("10.244.0.0/16")},
		Virtual: func() (func(netip.Addr) bool, error) {
			return func(a netip.Addr) bool { return a == netip.MustParseAddr("192.0.2.200") }, nil
		},
		Nodes: func() map[string]string {
			const mine, other = "mine.nodes.example", "other.nodes.example"
			return map[string]string{mine: mine, "192.0.2.8": mine, other: other, "192.0.2.9": other}
		},
	})
}

// kubelet is a template of what a node's own API serves with.
func kubelet(t *testing.T, node string, ip net.IP) *x509.Certificate {
	t.Helper()
	return wanted(t, x509.ExtKeyUsageServerAuth, func(c *x509.Certificate) {
		c.Subject = pkix.Name{CommonName: NodePrefix + node, Organization: []string{NodesOrganization}}
		c.DNSNames, c.IPAddresses = []string{node, "localhost"}, []net.IP{ip, net.IPv4(127, 0, 0, 1)}
	})
}

// TestTheClustersOwnServiceGivesNoMore holds the other way to a certificate to the same rules.
func TestTheClustersOwnServiceGivesNoMore(t *testing.T) {
	a := open(t, Config{Dir: t.TempDir(), Names: []string{"api.example"}, IPs: []net.IP{net.IPv4(192, 0, 2, 1)}, ServiceIP: net.IPv4(10, 96, 0, 1)})
	reserveSome(a)
	key, _, err := newKeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	for _, ip := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.9", "192.0.2.200", "10.96.0.1", "10.244.3.4"} {
		if _, err := a.SignNodeServing(csr, "mine.nodes.example", []net.IP{net.ParseIP(ip)}); !errors.Is(err, ErrBadRequest) {
			t.Errorf("%s: %v", ip, err)
		}
	}
	for _, name := range []string{"api.example", "second.example", "kubernetes.default.svc"} {
		if _, err := a.SignNodeServing(csr, name, nil); !errors.Is(err, ErrBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := a.SignNodeServing(csr, "mine.nodes.example", []net.IP{net.IPv4(192, 0, 2, 8)}); err != nil {
		t.Error(err)
	}
}

func TestNobodyIsGivenTheIdentityOfAServer(t *testing.T) {
	a := open(t, Config{Dir: t.TempDir(), Names: []string{"api.example"}, IPs: []net.IP{net.IPv4(192, 0, 2, 1)}, ServiceIP: net.IPv4(10, 96, 0, 1)})
	i := issuer(t, a, IssuerConfig{})
	reserveSome(a)
	id := strings.Repeat("0", 32)
	client, server := x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth
	for what, c := range map[string]*x509.Certificate{
		"masters":             wanted(t, client, func(c *x509.Certificate) { c.Subject.Organization = []string{"devs", "system:masters"} }),
		"servers":             wanted(t, client, func(c *x509.Certificate) { c.Subject.Organization = []string{"balsa:servers"} }),
		"a server":            wanted(t, client, func(c *x509.Certificate) { c.Subject.CommonName = "balsa:server:" + id }),
		"the API":             wanted(t, server, func(c *x509.Certificate) { c.Subject.CommonName = "kube-apiserver" }),
		"a server's name":     wanted(t, client, func(c *x509.Certificate) { c.DNSNames = []string{id + ".Server.Balsa."} }),
		"any server's name":   wanted(t, server, func(c *x509.Certificate) { c.DNSNames = []string{"*.server.balsa"} }),
		"the Service":         wanted(t, server, func(c *x509.Certificate) { c.DNSNames = []string{"kubernetes.default.svc"} }),
		"by wildcard":         wanted(t, server, func(c *x509.Certificate) { c.DNSNames = []string{"*.default.svc.cluster.local"} }),
		"this one":            wanted(t, server, func(c *x509.Certificate) { c.DNSNames = []string{"API.example"} }),
		"its address":         wanted(t, server, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 1)} }),
		"the Service's":       wanted(t, server, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(10, 96, 0, 1)} }),
		"another Service's":   wanted(t, server, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(10, 96, 3, 1).To4()} }),
		"another server's":    wanted(t, server, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 2)} }),
		"its name":            wanted(t, server, func(c *x509.Certificate) { c.DNSNames = []string{"second.example"} }),
		"for any use":         wanted(t, x509.ExtKeyUsageAny, func(c *x509.Certificate) { c.DNSNames = []string{"kubernetes"} }),
		"for no use":          wanted(t, client, func(c *x509.Certificate) { c.ExtKeyUsage, c.DNSNames = nil, []string{"kubernetes"} }),
		"an authority":        wanted(t, client, func(c *x509.Certificate) { c.IsCA = true }),
		"who signs":           wanted(t, client, func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }),
		"who signs refusals":  wanted(t, client, func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCRLSign }),
		"an etcd client":      wanted(t, client, func(c *x509.Certificate) { c.Subject.Organization = []string{"balsa:etcd-clients"} }),
		"a pod's address":     wanted(t, server, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(10, 244, 1, 9)} }),
		"a load balancer's":   wanted(t, server, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 200)} }),
		"a node's address":    wanted(t, server, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 9)} }),
		"a node's name":       wanted(t, server, func(c *x509.Certificate) { c.DNSNames = []string{"Other.nodes.example"} }),
		"nodes by wildcard":   wanted(t, server, func(c *x509.Certificate) { c.DNSNames = []string{"*.nodes.example"} }),
		"another's as a node": kubelet(t, "mine.nodes.example", net.IPv4(192, 0, 2, 9)),
		"none's as a node":    kubelet(t, "mine.nodes.example", net.IPv4(192, 0, 2, 77)),
		"a server after devs": wanted(t, client, func(c *x509.Certificate) { c.Subject.Organization = []string{"system:nodes", "balsa:servers"} }),
	} {
		if _, err := i.Sign(c); !errors.Is(err, ErrBadRequest) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, c := range map[string]*x509.Certificate{
		"a node": wanted(t, client, func(c *x509.Certificate) {
			c.Subject = pkix.Name{CommonName: "system:node:n", Organization: []string{"system:nodes"}}
		}),
		"its kubelet": wanted(t, server, func(c *x509.Certificate) {
			c.DNSNames, c.IPAddresses = []string{"n", "localhost"}, []net.IP{net.IPv4(192, 0, 2, 7), net.IPv4(127, 0, 0, 1)}
		}),
		"a node on record":                kubelet(t, "mine.nodes.example", net.IPv4(192, 0, 2, 8)),
		"a foreign kubelet":               kubelet(t, "foreign", net.IPv4(192, 0, 2, 77)),
		"a client of a name of the API's": wanted(t, client, func(c *x509.Certificate) { c.DNSNames = []string{"kubernetes"} }),
	} {
		if _, err := i.Sign(c); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// files writes a CA of its own.
func files(t *testing.T, dir, name string) (certFile, keyFile string, ca *caPair) {
	t.Helper()
	ca, err := newCA(name, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "sign.crt"), filepath.Join(dir, "sign.key")
	for path, data := range map[string][]byte{certFile: ca.certPEM, keyFile: ca.keyPEM} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile, ca
}

func TestAnotherAuthoritySignsForClientsAndMayBeExchanged(t *testing.T) {
	a, dir := open(t, Config{Dir: t.TempDir()}), t.TempDir()
	certFile, keyFile, first := files(t, dir, "first")
	i := issuer(t, a, IssuerConfig{CertFile: certFile, KeyFile: keyFile})
	by := func(usage x509.ExtKeyUsage) *x509.Certificate {
		t.Helper()
		certPEM, err := i.Sign(wanted(t, usage, nil))
		if err != nil {
			t.Fatal(err)
		}
		return parsed(t, certPEM)
	}
	if err := by(x509.ExtKeyUsageClientAuth).CheckSignatureFrom(first.cert); err != nil {
		t.Error(err)
	}
	_, _, second := files(t, dir, "second")
	if err := by(x509.ExtKeyUsageClientAuth).CheckSignatureFrom(second.cert); err != nil {
		t.Error(err)
	}
	if err := by(x509.ExtKeyUsageServerAuth).CheckSignatureFrom(a.keys.Load().ca.cert); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(keyFile, first.keyPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Sign(wanted(t, x509.ExtKeyUsageClientAuth, nil)); !errors.Is(err, ErrDamaged) || errors.Is(err, ErrBadRequest) {
		t.Errorf("a key of another certificate: %v", err)
	}
	if _, err := a.Issuer(IssuerConfig{CertFile: certFile}); err == nil {
		t.Error("a certificate without its key is taken")
	}
}

func TestAnAuthorityWhoseTimeIsOverSignsNothing(t *testing.T) {
	now := time.Now()
	a := open(t, Config{Dir: t.TempDir(), Now: func() time.Time { return now }})
	now = now.Add(CALifetime)
	if _, err := issuer(t, a, IssuerConfig{}).Sign(wanted(t, x509.ExtKeyUsageClientAuth, nil)); err == nil || errors.Is(err, ErrBadRequest) {
		t.Error(err)
	}
}

func TestClientsAuthoritiesAreFollowed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "clients.crt")
	one, err := newCA("one", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	two, err := newCA("two", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	write := func(data []byte) {
		t.Helper()
		if err := atomicfile.WriteContent(path, data); err != nil { // by another file's name, as a mounted Secret changes
			t.Fatal(err)
		}
	}
	write(one.certPEM)
	trust, err := OpenTrust(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- trust.Run(ctx) }()
	knows := func(ca *caPair) bool {
		p, err := ca.issue(Request{CommonName: "jane", Usage: Client}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		opts, _ := trust.VerifyOptions()
		_, err = p.cert.Verify(opts)
		return err == nil
	}
	if !knows(one) || knows(two) {
		t.Fatal("not those of the file")
	}
	write(append(one.certPEM, two.certPEM...))
	await(t, func() bool { return knows(two) })
	write([]byte("nothing"))
	write(two.certPEM)
	await(t, func() bool { return !knows(one) })
	if !knows(two) {
		t.Error("the second is not known any more")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	leaf, err := one.issue(Request{CommonName: "jane", Usage: Client}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for what, data := range map[string][]byte{"nothing": nil, "a key": one.keyPEM, "half": one.certPEM[:99], "no authority": leaf.certPEM,
		"noise": pem.EncodeToMemory(&pem.Block{Type: certBlock, Bytes: []byte("x")}), "too much": make([]byte, maxTrust+1)} {
		write(data)
		if _, err := OpenTrust(path, nil); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func await(t *testing.T, ok func() bool) {
	t.Helper()
	look, limit := time.NewTicker(5*time.Millisecond), time.After(time.Minute)
	defer look.Stop()
	for !ok() {
		select {
		case <-look.C:
		case <-limit:
			t.Fatal("not in time")
		}
	}
}
