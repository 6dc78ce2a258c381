package cluster

import (
	"crypto/x509"
	"errors"
	"fmt"

	"google.golang.org/grpc/status"
)

// NodeOf returns the name of the node that a client certificate, verified against the cluster's CA, belongs to now: an agent's, or
// a server's. It returns an error for a member that was removed or replaced.
func (s *Service) NodeOf(cert *x509.Certificate) (name string, err error) {
	who := caller{cert: cert}
	who.kind, who.id = identify(cert)
	switch who.kind {
	case nodeCaller:
		if err := s.checkNode(who); err != nil {
			return "", errors.New(status.Convert(err).Message())
		}
		return who.id, nil
	case serverCaller:
		rec, _, err := read[MemberRecord](s.cfg.Store.View(), membersPrefix+who.id)
		if err != nil {
			return "", err
		}
		if rec == nil {
			return "", fmt.Errorf("server %s is no member of this cluster", short(who.id))
		}
		return rec.Name, nil
	}
	return "", fmt.Errorf("the certificate of %q is no node's", cert.Subject.CommonName)
}
