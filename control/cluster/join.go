package cluster

import (
	"cmp"
	"context"
	"encoding/pem"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"crypto/x509"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/token"
	"github.com/balsahq/balsa/raftstore"
)

const maxAddresses = 16

// Join implements clusterpb.ClusterServer.
func (s *Service) Join(ctx context.Context, r *clusterpb.JoinRequest) (*clusterpb.JoinResponse, error) {
	s.streams.markReceived(ctx)
	who, err := s.caller(ctx)
	if err != nil {
		who = caller{kind: anonymousCaller, from: who.from} // a machine with an expired certificate may still join by token
	}
	j := joining{JoinRequest: r, server: r.Role == clusterpb.Role_ROLE_SERVER}
	if err := j.check(s.cfg.PKI); err != nil {
		return nil, wire(err)
	}
	if len(r.Proof) > 0 {
		answer, err := s.joinExpired(ctx, who, j)
		return answer, wire(err)
	}
	if !s.provesItself(ctx, who, r) {
		t, err := s.checkToken(ctx, who, r.Token, j.server)
		if err != nil {
			return nil, wire(err)
		}
		j.token = &t
	}
	if err := checkVersions(s.cfg.Version, r.Version, Protocol, int(r.Protocol)); err != nil {
		return nil, wire(fmt.Errorf("%w: %w", ErrVersion, err))
	}
	if !j.server {
		answer, err := s.joinAgent(ctx, j)
		return answer, wire(err)
	}
	if j.token == nil {
		ctx = metadata.AppendToOutgoingContext(ctx, joiningAs, r.ServerId)
	}
	return callOnLeader(ctx, s, func(ctx context.Context) (*clusterpb.JoinResponse, error) { return s.joinServer(ctx, j) },
		func(ctx context.Context, c clusterpb.ClusterClient) (*clusterpb.JoinResponse, error) {
			return c.Join(ctx, r)
		})
}

// provesItself reports whether a server that joins again has authenticated with its peer certificate, here or at the server
// that forwarded the call.
func (s *Service) provesItself(ctx context.Context, who caller, r *clusterpb.JoinRequest) bool {
	if who.kind != serverCaller || r.Role != clusterpb.Role_ROLE_SERVER {
		return false
	}
	as, _ := valueFrom(ctx, joiningAs)
	return who.id == r.ServerId || as == r.ServerId
}

// joining is a parsed request.
type joining struct {
	*clusterpb.JoinRequest
	server bool
	token  *token.Token // nil for a server that proved itself
}

// check refuses invalid requests before anything is looked up.
func (j joining) check(authority *pki.Authority) error {
	if j.Role != clusterpb.Role_ROLE_SERVER && j.Role != clusterpb.Role_ROLE_AGENT {
		return status.Error(codes.InvalidArgument, "a machine joins as server or as agent")
	}
	if err := authority.CheckNodeName(j.Name); err != nil {
		return err
	}
	if len(j.Version) > 128 || len(j.Addresses) > maxAddresses {
		return status.Errorf(codes.InvalidArgument, "at most %d addresses, and a version of 128 bytes", maxAddresses)
	}
	if !j.server {
		_, err := nodeAddresses(j.Addresses)
		return err
	}
	if err := pki.CheckServerID(j.ServerId); err != nil {
		return err
	}
	if len(j.Addresses) == 0 {
		return status.Error(codes.InvalidArgument, "a server joins with the address others reach it at")
	}
	for _, a := range j.Addresses {
		host, port, err := net.SplitHostPort(a)
		if err != nil || host == "" || port == "" || len(a) > 255 || strings.ContainsAny(a, " \t\r\n") {
			return status.Errorf(codes.InvalidArgument, "a server's address is host:port, not %q", a)
		}
	}
	return nil
}

func (s *Service) joinServer(ctx context.Context, j joining) (*clusterpb.JoinResponse, error) {
	cert, err := s.cfg.PKI.SignServer(j.Csr, j.ServerId)
	if err != nil {
		return nil, err
	}
	servers, err := s.cfg.Store.Servers()
	if err != nil {
		return nil, err
	}
	err = s.attempt(ctx, func(v *raftstore.View) (*raftstore.Txn, error) {
		facts := serverFacts{id: j.ServerId, name: j.Name, records: Records(v), removed: v.Get(removedPrefix+j.ServerId) != nil,
			nodes: readAll[nodeRecord](v, nodesPrefix), raft: servers, gossip: s.allMembers(v)}
		if err := admitServer(facts); err != nil {
			return nil, err
		}
		return s.admission(v, j, facts.records)
	})
	if err != nil {
		return nil, err
	}
	if err := s.cfg.Store.AddLearner(ctx, j.ServerId); err != nil {
		return nil, err
	}
	bundle, err := s.cfg.PKI.Bundle()
	if err != nil {
		return nil, err
	}
	s.cfg.Logger.Info("a server joined", "name", j.Name, "server", j.ServerId, "addresses", j.Addresses)
	v := s.cfg.Store.View()
	answer := s.welcome(v)
	if err := s.addGossip(v, answer); err != nil {
		return nil, err
	}
	answer.Certificate, answer.Bundle, answer.RecoveryKey = cert, bundle, s.cfg.RecoveryKey.Bytes()
	return answer, nil
}

// admission returns the transaction that records a server. It fails if any member's record was written after v was read,
// because the name was compared with all records in v.
func (s *Service) admission(v *raftstore.View, j joining, records map[string]MemberRecord) (*raftstore.Txn, error) {
	rec := MemberRecord{Name: j.Name, Addresses: j.Addresses, Version: j.Version, Protocol: int(j.Protocol), Joined: s.cfg.Now().UTC()}
	old, known := records[j.ServerId]
	if known {
		rec.Joined = old.Joined
	}
	op, err := put(membersPrefix+j.ServerId, rec)
	txn := &raftstore.Txn{Compares: []raftstore.Compare{unchanged(membersPrefix, v.Revision())}, Success: []raftstore.Op{op}}
	if err == nil && j.token != nil && !known {
		err = consume(v, *j.token, txn)
	}
	return txn, err
}

func (s *Service) joinAgent(ctx context.Context, j joining) (*clusterpb.JoinResponse, error) {
	if err := checkServerNames(j.Name, Records(s.cfg.Store.View())); err != nil {
		return nil, err
	}
	signed, err := s.signNode(j.Name, j.Csr, j.ServingCsr, j.ServicesCsr, j.Addresses)
	if err != nil {
		return nil, err
	}
	err = s.attempt(ctx, func(v *raftstore.View) (*raftstore.Txn, error) {
		rec, rev, err := read[nodeRecord](v, nodesPrefix+j.Name)
		if err != nil {
			return nil, err
		}
		facts := agentFacts{name: j.Name, key: signed.key, replace: j.Replace, record: rec, servers: Records(v), gossip: s.allMembers(v)}
		if tok, _, err := read[tokenRecord](v, tokensPrefix+j.token.ID); err == nil && tok != nil {
			facts.replaces = tok.Replaces
		}
		if err := admitAgent(facts); err != nil {
			return nil, err
		}
		next := nodeRecord{Key: signed.key, Services: signed.servicesKey, Expires: signed.expires, Addresses: j.Addresses, Version: j.Version,
			Joined: s.cfg.Now().UTC()}
		op, err := put(nodesPrefix+j.Name, next)
		txn := &raftstore.Txn{Success: []raftstore.Op{op},
			Compares: []raftstore.Compare{raftstore.ModRevisionIs(nodesPrefix+j.Name, rev), unchanged(membersPrefix, v.Revision())}}
		again := rec != nil && rec.has(signed.key)
		if err == nil && rec != nil && !again { // another machine takes the name
			err = revoke(v, txn, j.Name, *rec, s.cfg.Now())
		}
		if err == nil && !again {
			err = consume(v, *j.token, txn)
		}
		restore(v, txn, next)
		return txn, err
	})
	if err != nil {
		return nil, err
	}
	s.cfg.Logger.Info("an agent joined", "name", j.Name, "addresses", j.Addresses)
	answer := s.welcome(s.cfg.Store.View())
	answer.Certificate, answer.ServingCertificate, answer.ServicesCertificate = signed.client, signed.serving, signed.services
	return answer, nil
}

// welcome returns the part of the answer for every joining machine.
func (s *Service) welcome(v *raftstore.View) *clusterpb.JoinResponse {
	return &clusterpb.JoinResponse{
		ClusterId: s.cfg.Store.ClusterID(), Generation: s.cfg.Store.Generation(), Ca: s.cfg.PKI.CA(),
		Servers: s.serverList(v), Settings: s.cfg.Settings.Proto(),
	}
}

// addGossip adds the keys and addresses that a server needs for gossip.
func (s *Service) addGossip(v *raftstore.View, answer *clusterpb.JoinResponse) error {
	ring, err := readKeyring(v)
	if err != nil {
		return err
	}
	answer.Gossip = ring.proto()
	for _, m := range s.cfg.Members.Members() {
		if m.ServerID == s.cfg.Store.ServerID() {
			answer.GossipAddress = m.Addr
		}
	}
	return nil
}

// signed are a node's certificates.
type signed struct {
	client, serving, services []byte
	key, servicesKey          string
	expires                   time.Time
}

// signNode signs what was asked for: the node's client certificate always, the others when there is a request.
func (s *Service) signNode(name string, client, serving, services []byte, addresses []string) (signed, error) {
	var out signed
	ips, err := nodeAddresses(addresses)
	if err == nil {
		err = s.cfg.PKI.CheckNodeHosts(name, ips)
	}
	if err != nil {
		return out, err
	}
	if out.client, err = s.cfg.PKI.SignNode(client, name); err != nil {
		return out, err
	}
	if len(serving) > 0 {
		if out.serving, err = s.cfg.PKI.SignNodeServing(serving, name, ips); err != nil {
			return out, err
		}
	}
	if len(services) > 0 {
		if out.services, err = s.cfg.PKI.SignServices(services); err != nil {
			return out, err
		}
	}
	cert, err := certificateOf(out.client)
	if err != nil {
		return out, err
	}
	out.key, out.expires = keyOf(cert), cert.NotAfter
	if len(services) > 0 {
		if cert, err = certificateOf(out.services); err != nil {
			return out, err
		}
		out.servicesKey = keyOf(cert)
	}
	return out, nil
}

func certificateOf(certPEM []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(certPEM)
	return x509.ParseCertificate(block.Bytes)
}

func nodeAddresses(addresses []string) ([]net.IP, error) {
	var out []net.IP
	for _, text := range addresses {
		a, err := netip.ParseAddr(text)
		if err != nil || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.Zone() != "" {
			return nil, status.Errorf(codes.InvalidArgument, "%q is no address of a node", text)
		}
		out = append(out, a.AsSlice())
	}
	if len(out) > maxAddresses {
		return nil, status.Errorf(codes.InvalidArgument, "at most %d addresses", maxAddresses)
	}
	return out, nil
}

// Renew implements clusterpb.ClusterServer.
func (s *Service) Renew(ctx context.Context, r *clusterpb.RenewRequest) (*clusterpb.RenewResponse, error) {
	who, err := s.authorize(ctx, nodeCaller)
	if err != nil {
		return nil, err
	}
	out, others, err := s.renewNode(ctx, who, r, func(rec *nodeRecord, _ signed) bool { return rec.has(keyOf(who.cert)) })
	if err != nil {
		return nil, wire(err)
	}
	return &clusterpb.RenewResponse{Certificate: out.client, ServingCertificate: out.serving, ServicesCertificate: out.services,
		Ca: s.cfg.PKI.CA(), Servers: s.serverList(s.cfg.Store.View()), LeftOut: others}, nil
}

// renewNode signs a node's certificates anew and records their keys, if its record says that the caller's key may ask. others
// are the addresses that no certificate is made for.
func (s *Service) renewNode(ctx context.Context, who caller, r *clusterpb.RenewRequest, may func(*nodeRecord, signed) bool) (out signed, others []string, err error) {
	known, _, err := read[nodeRecord](s.cfg.Store.View(), nodesPrefix+who.id)
	if err != nil || known == nil {
		return out, nil, cmp.Or(err, errNotThisNode(who.id))
	}
	addresses, others := ownAddresses(known.Addresses, who.from, r.Addresses)
	if len(others) > 0 {
		s.cfg.Logger.Warn("a node asked for a certificate with addresses that are not on record and from which it did not call; they are left out",
			"node", who.id, "from", who.from, "addresses", others)
	}
	if out, err = s.signNode(who.id, r.Csr, r.ServingCsr, r.ServicesCsr, addresses); err != nil {
		return out, others, err
	}
	return out, others, s.attempt(ctx, func(v *raftstore.View) (*raftstore.Txn, error) {
		rec, rev, err := read[nodeRecord](v, nodesPrefix+who.id)
		if err != nil {
			return nil, err
		}
		if rec == nil || !may(rec, out) {
			return nil, errNotThisNode(who.id)
		}
		if out.key != rec.Key { // else the answer was lost, and this is the same request again
			rec.Key, rec.Previous = out.key, keyOf(who.cert)
		}
		if out.servicesKey != "" && out.servicesKey != rec.Services {
			rec.Services, rec.WasServices = out.servicesKey, rec.Services
		}
		rec.Expires, rec.Addresses = out.expires, addresses
		op, err := put(nodesPrefix+who.id, rec)
		return &raftstore.Txn{Compares: []raftstore.Compare{raftstore.ModRevisionIs(nodesPrefix+who.id, rev)}, Success: []raftstore.Op{op}}, err
	})
}

func errNotThisNode(name string) error {
	return status.Errorf(codes.PermissionDenied, "node %q was removed, or its name is another machine's now: join again with a token", name)
}

// checkNode refuses the certificate of a node that was removed or replaced.
func (s *Service) checkNode(who caller) error {
	rec, _, err := read[nodeRecord](s.cfg.Store.View(), nodesPrefix+who.id)
	if err != nil {
		return wire(err)
	}
	if rec == nil || !rec.has(keyOf(who.cert)) {
		return errNotThisNode(who.id)
	}
	return nil
}
