package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
)

// RenewalDigest returns the digest that an agent signs with the key of its expired certificate: over all parts of the
// request except the proof, each after its length. An attacker who replays the request gains nothing, because the
// certificates in the answer are for keys that never leave the agent.
func RenewalDigest(r *clusterpb.JoinRequest) [sha256.Size]byte {
	sum := sha256.New()
	part := func(data []byte) {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(data)))
		sum.Write(size[:])
		sum.Write(data)
	}
	part([]byte("balsa: renew the certificates of an agent"))
	for _, data := range [][]byte{[]byte(r.Name), r.Csr, r.ServingCsr, r.ServicesCsr, r.Certificate} {
		part(data)
	}
	for _, address := range r.Addresses {
		part([]byte(address))
	}
	return [sha256.Size]byte(sum.Sum(nil))
}

// joinExpired renews the certificates of an agent that TLS handshakes refuse: the certificate expired while the machine
// slept, its clock jumped, or its CA was retired while the machine was off. The agent comes without a certificate and
// proves that it holds the key. The key must be the newest on record for the node: one that was removed or replaced, or
// that renewed with another key since, is refused.
func (s *Service) joinExpired(ctx context.Context, who caller, j joining) (*clusterpb.JoinResponse, error) {
	if !s.failed.Allow(who.from) {
		return nil, status.Error(codes.ResourceExhausted, "too many failed joins from this address: wait a minute")
	}
	node, err := s.provenNode(j)
	if err == nil {
		node.from = who.from
		var out signed
		renewal := &clusterpb.RenewRequest{Csr: j.Csr, ServingCsr: j.ServingCsr, ServicesCsr: j.ServicesCsr, Addresses: j.Addresses}
		asking := keyOf(node.cert)
		out, _, err = s.renewNode(ctx, node, renewal, func(rec *nodeRecord, next signed) bool {
			answerLost := rec.Previous == asking && rec.Key == next.key
			return rec.Key == asking || answerLost
		})
		if err == nil {
			s.cfg.Logger.Info("an agent renewed a certificate that no handshake takes any more", "name", j.Name, "expires", node.cert.NotAfter)
			answer := s.welcome(s.cfg.Store.View())
			answer.Certificate, answer.ServingCertificate, answer.ServicesCertificate = out.client, out.serving, out.services
			return answer, nil
		}
	}
	if code := status.Code(wire(err)); code != codes.Unavailable && s.failed.Failed(who.from) {
		s.cfg.Logger.Warn("an agent with an expired certificate is refused; more failures from there within ten minutes are not logged",
			"from", who.from, "err", err)
	}
	return nil, err
}

// provenNode returns the node whose key signed the request.
func (s *Service) provenNode(j joining) (caller, error) {
	cert, err := s.cfg.PKI.Holder(j.Certificate, RenewalDigest(j.JoinRequest), j.Proof)
	if err != nil {
		return caller{}, err
	}
	who := caller{cert: cert}
	who.kind, who.id = identify(cert)
	if j.server || who.kind != nodeCaller || who.id != j.Name {
		return who, status.Error(codes.PermissionDenied, fmt.Sprintf("the certificate of %q does not renew that of node %q", cert.Subject.CommonName, j.Name))
	}
	return who, nil
}
