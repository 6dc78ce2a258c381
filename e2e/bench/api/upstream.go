package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/e2e/figures"
)

// newUpstream is etcd and kube-apiserver as kubeadm runs them: TLS between them and to clients, Node and RBAC
// authorization, every write synced.
func newUpstream(dir string) (*system, error) {
	bin, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s, err := newSystem(figures.Theirs, "upstream", filepath.Join(bin, "kube-apiserver"))
	if err != nil {
		return nil, err
	}
	at := func(name string) string { return filepath.Join(s.machine.DataDir, name) }
	addr := s.machine.Addr.String()
	if err := certify(s.machine.DataDir, net.IP(s.machine.Addr.AsSlice())); err != nil {
		return s, err
	}
	const client, peer = "https://127.0.0.1:2379", "https://127.0.0.1:2380"
	s.programs = []*program{
		{path: filepath.Join(bin, "etcd"), args: []string{"--name=m0", "--data-dir=" + at("etcd"), "--log-level=warn",
			"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=m0=" + peer,
			"--cert-file=" + at("server.crt"), "--key-file=" + at("server.key"), "--trusted-ca-file=" + at("ca.crt"), "--client-cert-auth",
			"--peer-cert-file=" + at("server.crt"), "--peer-key-file=" + at("server.key"), "--peer-trusted-ca-file=" + at("ca.crt"), "--peer-client-cert-auth"}},
		{path: filepath.Join(bin, "kube-apiserver"), args: []string{
			"--advertise-address=" + addr, "--bind-address=" + addr, "--secure-port=6443", "--allow-privileged=true",
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--client-ca-file=" + at("ca.crt"),
			"--etcd-servers=" + client, "--etcd-cafile=" + at("ca.crt"), "--etcd-certfile=" + at("admin.crt"), "--etcd-keyfile=" + at("admin.key"),
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--service-account-key-file=" + at("server.key"),
			"--service-account-signing-key-file=" + at("server.key"), "--service-cluster-ip-range=10.96.0.0/16",
			"--tls-cert-file=" + at("server.crt"), "--tls-private-key-file=" + at("server.key")}},
	}
	s.config = func() (*rest.Config, error) {
		return &rest.Config{Host: "https://" + net.JoinHostPort(addr, "6443"), Dial: s.machine.Dial,
			TLSClientConfig: rest.TLSClientConfig{CAFile: at("ca.crt"), CertFile: at("admin.crt"), KeyFile: at("admin.key")}}, nil
	}
	return s, nil
}

// certify writes a CA, a certificate for the servers and one for the administrator.
func certify(dir string, addr net.IP) error {
	now := time.Now()
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := issue(filepath.Join(dir, "ca"), authority, authority, key, key); err != nil {
		return err
	}
	for i, subject := range []pkix.Name{{CommonName: "server"}, {CommonName: "admin", Organization: []string{"system:masters"}}} {
		leaf := &x509.Certificate{SerialNumber: big.NewInt(int64(i) + 2), Subject: subject, NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
		if subject.CommonName == "server" {
			leaf.DNSNames, leaf.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1), addr}
		}
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		if err := issue(filepath.Join(dir, subject.CommonName), leaf, authority, own, key); err != nil {
			return err
		}
	}
	return nil
}

// issue writes base.crt and base.key.
func issue(base string, cert, parent *x509.Certificate, own, signer *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, own.Public(), signer)
	if err != nil {
		return err
	}
	raw, err := x509.MarshalECPrivateKey(own)
	if err != nil {
		return err
	}
	if err := os.WriteFile(base+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(base+".key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}), 0o600)
}
