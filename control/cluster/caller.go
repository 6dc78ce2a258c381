package cluster

import (
	"context"
	"crypto/x509"
	"net"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/control/auth/pki"
)

// callerKind is the kind of a caller. Each kind is one bit, so that a method can name several.
type callerKind uint8

const (
	anonymousCaller callerKind = 1 << iota
	nodeCaller
	serverCaller
	adminCaller

	members  = nodeCaller | serverCaller | adminCaller
	managers = serverCaller | adminCaller
)

// caller is the identity of a caller by its verified certificate, and the address that it calls from.
type caller struct {
	kind callerKind
	id   string // the server's ID or the node's name
	cert *x509.Certificate
	from netip.Addr
}

// authorize returns the caller if it is of one of the kinds, else a gRPC error.
func (s *Service) authorize(ctx context.Context, kinds callerKind) (caller, error) {
	who, err := s.caller(ctx)
	if err != nil {
		return who, err
	}
	if who.kind&kinds != 0 {
		if who.kind == nodeCaller {
			return who, s.checkNode(who)
		}
		return who, nil
	}
	if who.kind == anonymousCaller {
		return who, status.Error(codes.Unauthenticated, "this call needs a client certificate of the cluster")
	}
	return who, status.Error(codes.PermissionDenied, "this certificate may not make this call: use the administrator's")
}

func (s *Service) caller(ctx context.Context) (caller, error) {
	who := caller{kind: anonymousCaller}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return who, nil
	}
	who.from = addressOf(p.Addr)
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return who, nil
	}
	leaf := info.State.PeerCertificates[0]
	opts, _ := s.cfg.PKI.ClientVerifyOptions()
	if _, err := leaf.Verify(opts); err != nil {
		return who, status.Error(codes.Unauthenticated, "the client certificate is not of this cluster, or has expired: "+err.Error())
	}
	who.cert = leaf
	who.kind, who.id = identify(leaf)
	return who, nil
}

// identify returns the kind and the ID of the holder of a verified certificate.
func identify(leaf *x509.Certificate) (callerKind, string) {
	is := func(org string) bool { return slices.Contains(leaf.Subject.Organization, org) }
	if id, ok := strings.CutPrefix(leaf.Subject.CommonName, pki.ServerPrefix); ok && is(pki.ServersOrganization) && pki.CheckServerID(id) == nil {
		return serverCaller, id
	}
	if is(pki.MastersOrganization) {
		return adminCaller, leaf.Subject.CommonName
	}
	if name, ok := strings.CutPrefix(leaf.Subject.CommonName, pki.NodePrefix); ok && is(pki.NodesOrganization) {
		return nodeCaller, name
	}
	return anonymousCaller, ""
}

func addressOf(a net.Addr) netip.Addr {
	if a == nil {
		return netip.Addr{}
	}
	if ap, err := netip.ParseAddrPort(a.String()); err == nil {
		return ap.Addr().Unmap()
	}
	return netip.Addr{}
}
