package quorum

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/balsahq/balsa/e2e/lan"
)

// tls returns a client configuration.
func (c Credentials) tls() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(c.CA)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s holds no certificate", c.CA)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}

// makeCertificates makes a CA, an administrator's certificate and one certificate for all members, below the client's
// directory.
func makeCertificates(n *lan.Network) (admin, member Credentials, err error) {
	dir := n.Client.Dir
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return admin, member, err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		return admin, member, err
	}
	caFile := filepath.Join(dir, "ca.pem")
	if err := writePEM(caFile, "CERTIFICATE", der); err != nil {
		return admin, member, err
	}
	issue := func(name string, serial int64, ips []net.IP) (Credentials, error) {
		out := Credentials{CA: caFile, Cert: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+".key")}
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return out, err
		}
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, IPAddresses: ips,
			NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}, ca, own.Public(), key)
		if err != nil {
			return out, err
		}
		raw, err := x509.MarshalECPrivateKey(own)
		return out, errors.Join(err, writePEM(out.Cert, "CERTIFICATE", der), writePEM(out.Key, "EC PRIVATE KEY", raw))
	}
	ips := []net.IP{net.IPv4(127, 0, 0, 1)}
	for _, m := range n.Machines {
		ips = append(ips, m.Addr.AsSlice())
	}
	if member, err = issue("member", 2, ips); err != nil {
		return admin, member, err
	}
	admin, err = issue("admin", 3, nil)
	return admin, member, err
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
