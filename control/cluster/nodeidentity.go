package cluster

import (
	"crypto/x509"
	"errors"
	"fmt"

	"google.golang.org/grpc/status"
)

// NodeOf is the node that a client certificate, verified against the cluster's CA, stands for at present: the agent's that has
// the name, or that of a server which takes pods. Of who was removed or replaced it is none.
func (s *Service) NodeOf(cert *x509.Certificate) (name string, err error) {
	who := caller{cert: cert}
	who.kind, who.id = identify(cert)
	switch who.kind {
	case aNode:
		if err := s.checkNode(who); err != nil {
			return "", errors.New(status.Convert(err).Message())
		}
		return who.id, nil
	case aServer:
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
