package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Subjects of the cluster's certificates.
const (
	// ServersOrganization is the organization of servers' peer certificates.
	ServersOrganization = "balsa:servers"
	// ServerPrefix followed by the server's ID is the common name.
	ServerPrefix = "balsa:server:"
	// NodesOrganization and NodePrefix are upstream's organization and common name prefix of nodes.
	NodesOrganization = "system:nodes"
	NodePrefix        = "system:node:"
	// MastersOrganization is the organization of administrators.
	MastersOrganization = "system:masters"

	serverDomain = ".server.balsa"
	servingName  = "kube-apiserver"
	csrBlock     = "CERTIFICATE REQUEST"
	maxCSR       = 16 << 10
)

// ErrBadRequest means that a certificate request is refused. The wrapping error has the reason.
var ErrBadRequest = errors.New("bad certificate request")

var serverIDForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// ServerName returns the DNS name in a server's peer certificate, which peers verify. It is never resolved.
func ServerName(serverID string) string { return serverID + serverDomain }

// CheckServerID reports whether id has the form of a server's identity: 32 lower-case hex digits.
func CheckServerID(id string) error {
	if !serverIDForm.MatchString(id) {
		return fmt.Errorf("pki: server ID %q: want 32 lower-case hex digits: %w", id, ErrBadRequest)
	}
	return nil
}

// CheckNodeName refuses names that are no DNS names and names by which clients know a server, because a node's serving
// certificate is valid for the node's name.
func (a *Authority) CheckNodeName(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("pki: node name %q: %s: %w", name, problems[0], ErrBadRequest)
	}
	first, rest, _ := strings.Cut(name, ".")
	reserved := name == "localhost" || strings.HasSuffix("."+name, serverDomain) ||
		first == "kubernetes" && (rest == "" || rest == "default" || strings.HasPrefix(rest, "default.svc"))
	if reserved {
		return fmt.Errorf("pki: node name %q is reserved for the API servers: %w", name, ErrBadRequest)
	}
	return nil
}

// SignServer signs a server's peer certificate. It uses only the key of the request; the names are chosen here.
func (a *Authority) SignServer(csr []byte, serverID string) (certPEM []byte, err error) {
	if err := CheckServerID(serverID); err != nil {
		return nil, err
	}
	return a.signRequest(csr, peerRequest(serverID))
}

// SignNode signs a node's client certificate for the API. It uses only the key of the request.
func (a *Authority) SignNode(csr []byte, node string) (certPEM []byte, err error) {
	if err := a.CheckNodeName(node); err != nil {
		return nil, err
	}
	return a.signRequest(csr, nodeClientRequest(node))
}

// CheckNodeHosts returns an error if the name or one of the addresses is reserved for another machine or purpose.
func (a *Authority) CheckNodeHosts(node string, ips []net.IP) error {
	return a.reserved(a.keys.Load().ca.template(nodeServingRequest(node, nil, ips), a.cfg.Now()))
}

// SignNodeServing signs the serving certificate of a node's own API for the node's name and addresses. The caller must know
// that these are the node's addresses; reserved ones are refused.
func (a *Authority) SignNodeServing(csr []byte, node string, ips []net.IP) (certPEM []byte, err error) {
	if err := a.CheckNodeName(node); err != nil {
		return nil, err
	}
	return a.signRequest(csr, nodeServingRequest(node, nil, ips))
}

func (a *Authority) signRequest(csr []byte, r Request) ([]byte, error) {
	public, err := requestedKey(csr)
	if err != nil {
		return nil, err
	}
	r.Names, r.IPs = distinct(r.Names), distinctIPs(r.IPs)
	signer := a.signerOf(r.Usage)
	template := signer.template(r, a.cfg.Now())
	if r.Usage != Peer { // Join has checked the token of a server, whose certificate may have reserved names
		if err := a.reserved(template); err != nil {
			return nil, err
		}
	}
	_, certPEM, err := sign(template, signer.cert, public, signer.key)
	if err != nil {
		return nil, fmt.Errorf("pki: sign %s: %w", r.CommonName, err)
	}
	return certPEM, nil
}

// requestedKey returns the public key of a certificate request in PEM or DER, which must be signed with that key. The key
// must be ECDSA on P-256 or P-384.
func requestedKey(csr []byte) (*ecdsa.PublicKey, error) {
	bad := func(why string) error { return fmt.Errorf("pki: %s: %w", why, ErrBadRequest) }
	if len(csr) > maxCSR {
		return nil, bad("certificate request of more than 16 KiB")
	}
	if block, rest := pem.Decode(csr); block != nil {
		if block.Type != csrBlock || len(strings.TrimSpace(string(rest))) != 0 {
			return nil, bad("PEM that is not one certificate request")
		}
		csr = block.Bytes
	}
	req, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, bad("not a certificate request")
	}
	if err := req.CheckSignature(); err != nil {
		return nil, bad("certificate request not signed with its own key")
	}
	public, ok := req.PublicKey.(*ecdsa.PublicKey)
	if !ok || public.Curve != elliptic.P256() && public.Curve != elliptic.P384() {
		return nil, bad("certificate request for a key that is not ECDSA P-256 or P-384")
	}
	return public, nil
}

// NewCSR returns a certificate request in PEM for this key. It has no subject, because the signer chooses the names.
func NewCSR(key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "balsa"}}, key)
	if err != nil {
		return nil, fmt.Errorf("pki: certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: csrBlock, Bytes: der}), nil
}

// IsServers reports whether a certificate, already verified against the CA, is a server's peer certificate or the API's
// serving certificate. For a node's certificate it returns false.
func IsServers(c *x509.Certificate) bool {
	for _, o := range c.Subject.Organization {
		if o == ServersOrganization {
			return true
		}
	}
	return c.Subject.CommonName == servingName
}

// PeerTLS returns the configuration with which a server connects to a peer. It verifies the peer's ServerName instead of
// its address.
func PeerTLS(own func(*tls.CertificateRequestInfo) (*tls.Certificate, error), roots func() *x509.CertPool, serverID string) *tls.Config {
	return TrustNow(&tls.Config{MinVersion: tls.VersionTLS13, GetClientCertificate: own, ServerName: ServerName(serverID)}, roots)
}

// TrustNow changes a client's configuration so that servers are verified as crypto/tls does, but with the roots at the time
// of each handshake, because the CA may be rotated while the configuration is in use. An existing VerifyConnection is
// called afterwards.
func TrustNow(config *tls.Config, roots func() *x509.CertPool) *tls.Config {
	next := config.VerifyConnection
	config.InsecureSkipVerify = true // VerifyConnection does the verification that this turns off
	config.VerifyConnection = func(s tls.ConnectionState) error {
		if _, err := VerifyServer(s, x509.VerifyOptions{Roots: roots(), DNSName: s.ServerName}); err != nil {
			return err
		}
		if next == nil {
			return nil
		}
		return next(s)
	}
	return config
}

// VerifyServer verifies the chain that a server sent, through links if the client knows only an older CA. It sets
// Intermediates and KeyUsages of o.
func VerifyServer(s tls.ConnectionState, o x509.VerifyOptions) ([][]*x509.Certificate, error) {
	if len(s.PeerCertificates) == 0 {
		return nil, errors.New("the server sent no certificate")
	}
	o.KeyUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	o.Intermediates = poolOf(s.PeerCertificates[1:]...)
	chains, err := s.PeerCertificates[0].Verify(o)
	if err != nil {
		return nil, &tls.CertificateVerificationError{UnverifiedCertificates: s.PeerCertificates, Err: err}
	}
	return chains, nil
}

// ServicesUser is upstream's user name for the program of a node that reads Services, endpoints and Nodes.
const ServicesUser = "system:kube-proxy"

// SignServices signs the client certificate with which a node reads Services, endpoints and Nodes. It uses only the key of
// the request.
func (a *Authority) SignServices(csr []byte) (certPEM []byte, err error) {
	return a.signRequest(csr, Request{CommonName: ServicesUser, Usage: Client})
}

// PortCertificate returns the certificate function of the server's port: the peer certificate for handshakes with this
// server's ServerName, and the API's serving certificate for all others.
func (a *Authority) PortCertificate(serverID string) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	peer, err := a.Peer(serverID)
	if err != nil {
		return nil, err
	}
	name := ServerName(serverID)
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if hello != nil && hello.ServerName == name {
			return peer.GetCertificate(hello)
		}
		return a.server.GetCertificate(hello)
	}, nil
}
