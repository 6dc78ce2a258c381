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

// Who a certificate stands for.
const (
	// ServersOrganization is the organization of every server's peer certificate.
	ServersOrganization = "balsa:servers"
	// ServerPrefix and the server's ID are its common name.
	ServerPrefix = "balsa:server:"
	// NodesOrganization and NodePrefix are upstream's for nodes.
	NodesOrganization = "system:nodes"
	NodePrefix        = "system:node:"
	// MastersOrganization is the administrators'.
	MastersOrganization = "system:masters"

	serverDomain = ".server.balsa"
	servingName  = "kube-apiserver"
	csrBlock     = "CERTIFICATE REQUEST"
	maxCSR       = 16 << 10
)

// ErrBadRequest: a certificate cannot be signed for what was sent. The text says why.
var ErrBadRequest = errors.New("bad certificate request")

var serverIDForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// ServerName is the name in a server's peer certificate that whoever dials it checks; it is no DNS name anybody
// resolves.
func ServerName(serverID string) string { return serverID + serverDomain }

// CheckServerID reports whether id has the form of a server's identity: 32 lower-case hex digits.
func CheckServerID(id string) error {
	if !serverIDForm.MatchString(id) {
		return fmt.Errorf("pki: server ID %q: want 32 lower-case hex digits: %w", id, ErrBadRequest)
	}
	return nil
}

// CheckNodeName refuses names that no node may have: those that are not DNS names, and those by which clients know a
// server. A node's serving certificate carries its name.
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

// SignServer signs a server's peer certificate. Of the request only the key counts: names are decided here.
func (a *Authority) SignServer(csr []byte, serverID string) (certPEM []byte, err error) {
	if err := CheckServerID(serverID); err != nil {
		return nil, err
	}
	return a.signRequest(csr, peerRequest(serverID))
}

// SignNode signs what a node shows to the API. Of the request only the key counts.
func (a *Authority) SignNode(csr []byte, node string) (certPEM []byte, err error) {
	if err := a.CheckNodeName(node); err != nil {
		return nil, err
	}
	return a.signRequest(csr, nodeClientRequest(node))
}

// CheckNodeHosts returns why a node may not have this name and these addresses: they are somebody else's.
func (a *Authority) CheckNodeHosts(node string, ips []net.IP) error {
	return a.reserved(a.keys.Load().ca.template(nodeServingRequest(node, nil, ips), a.cfg.Now()))
}

// SignNodeServing signs what a node's own API serves with, for the node's name and the given addresses. Who calls it
// decides which addresses are the node's; none that is reserved is signed for.
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
	if r.Usage != Peer { // who may be a server is the token's to say
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

// requestedKey reads a request, PEM or DER, that is signed with the key it is for: ECDSA on P-256 or P-384.
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

// NewCSR returns a request, PEM, for a certificate with this key. It names nobody: the signer decides.
func NewCSR(key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "balsa"}}, key)
	if err != nil {
		return nil, fmt.Errorf("pki: certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: csrBlock, Bytes: der}), nil
}

// IsServers reports whether a certificate, already verified against the CA, is one of a server: its peer certificate
// or what the API serves with. A node's is not.
func IsServers(c *x509.Certificate) bool {
	for _, o := range c.Subject.Organization {
		if o == ServersOrganization {
			return true
		}
	}
	return c.Subject.CommonName == servingName
}

// PeerTLS is the configuration with which one server dials another, whose name it checks instead of its address.
func PeerTLS(own func(*tls.CertificateRequestInfo) (*tls.Certificate, error), roots func() *x509.CertPool, serverID string) *tls.Config {
	return TrustNow(&tls.Config{MinVersion: tls.VersionTLS13, GetClientCertificate: own, ServerName: ServerName(serverID)}, roots)
}

// TrustNow has a client's configuration verify servers as crypto/tls does, but with the roots of the moment of each
// handshake: the CA may be rotated while the configuration is in use. A VerifyConnection that is there is called after it.
func TrustNow(config *tls.Config, roots func() *x509.CertPool) *tls.Config {
	next := config.VerifyConnection
	config.InsecureSkipVerify = true // VerifyConnection does all that this leaves out
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

// VerifyServer verifies the chain that a server has shown, through links where the client knows only an earlier CA. It sets
// Intermediates and KeyUsages of o.
func VerifyServer(s tls.ConnectionState, o x509.VerifyOptions) ([][]*x509.Certificate, error) {
	if len(s.PeerCertificates) == 0 {
		return nil, errors.New("the server has shown no certificate")
	}
	o.KeyUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	o.Intermediates = poolOf(s.PeerCertificates[1:]...)
	chains, err := s.PeerCertificates[0].Verify(o)
	if err != nil {
		return nil, &tls.CertificateVerificationError{UnverifiedCertificates: s.PeerCertificates, Err: err}
	}
	return chains, nil
}

// ServicesUser is who reads Services, endpoints and Nodes on a node: upstream's name for it.
const ServicesUser = "system:kube-proxy"

// SignServices signs what a node shows when it reads Services, endpoints and Nodes. Of the request only the key counts.
func (a *Authority) SignServices(csr []byte) (certPEM []byte, err error) {
	return a.signRequest(csr, Request{CommonName: ServicesUser, Usage: Client})
}

// PortCertificate is what the one port shows: the peer certificate to whoever asks for this server by its peer name,
// what the API serves with to all others.
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
