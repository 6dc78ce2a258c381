package cluster

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/auth/rotation"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/raftstore"
)

// rotationKey is where the record of the last rotation of the CA and the service-account key is.
const rotationKey = "/balsa/rotation"

const (
	maxGrace      = 24 * time.Hour
	staleLook     = time.Second // how soon Secrets are looked at again that the new key is to sign
	maxHoldsPins  = 8
	maxHoldsBytes = 64
)

// newKeys are the private keys of a rotation, which its record has in encrypted form.
type newKeys struct {
	CA       []byte `json:"ca,omitempty"` // PEM, certificate and key
	TokenKey []byte `json:"tokenKey,omitempty"`
}

// RotateCertificates implements clusterpb.ClusterServer.
func (s *Service) RotateCertificates(ctx context.Context, r *clusterpb.RotateCertificatesRequest) (*clusterpb.Rotation, error) {
	if _, err := s.authorize(ctx, managers); err != nil {
		return nil, err
	}
	grace := time.Duration(r.GraceMs) * time.Millisecond
	switch {
	case r.Force && (r.Ca || r.ServiceAccountKey):
		return nil, status.Error(codes.InvalidArgument, "force goes on with the rotation that runs: do not name a key beside it")
	case !r.Force && !r.Ca && !r.ServiceAccountKey:
		return nil, status.Error(codes.InvalidArgument, "name what is replaced: the CA, the service-account key, or both")
	case grace < 0 || grace > maxGrace:
		return nil, status.Errorf(codes.InvalidArgument, "old tokens may count up to %v after pods have new ones, not %v", maxGrace, grace)
	case grace == 0:
		grace = rotation.DefaultGrace
	}
	if r.Force {
		if err := s.passOver(ctx); err != nil {
			return nil, wire(err)
		}
	} else if err := s.beginRotation(ctx, r, grace); err != nil {
		return nil, wire(err)
	}
	return s.rotationNow(ctx, s.cfg.Store.View())
}

// beginRotation makes the new keys and records the first phase.
func (s *Service) beginRotation(ctx context.Context, r *clusterpb.RotateCertificatesRequest, grace time.Duration) error {
	var fresh newKeys
	rec := rotation.Record{Number: 1, Phase: rotation.Trust, Grace: grace, Links: s.cfg.PKI.Links()}
	for _, c := range s.cfg.PKI.Retired() {
		rec.Retired = append(rec.Retired, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	if r.Ca {
		pair, cert, link, err := s.cfg.PKI.NewCA()
		if err != nil {
			return err
		}
		old := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cfg.PKI.CACertificate().Raw})
		fresh.CA = pair
		rec.CA = &rotation.Change{Old: pki.PinOf(old), New: pki.PinOf(cert), OldPEM: old, NewPEM: cert}
		rec.Links, rec.Retired = firstBlocks(append(link, rec.Links...), pki.MaxLinks), firstBlocks(append(slices.Clone(old), rec.Retired...), pki.MaxLinks)
	}
	if r.ServiceAccountKey {
		private, public, err := pki.NewTokenKey()
		if err != nil {
			return err
		}
		old, err := s.cfg.PKI.TokenKeyPEM()
		if err != nil {
			return err
		}
		fresh.TokenKey = private
		rec.TokenKey = &rotation.Change{Old: pki.PublicKeyID(old), New: pki.PublicKeyID(public), OldPEM: old, NewPEM: public}
	}
	secret, err := json.Marshal(fresh)
	if err != nil {
		return err
	}
	if rec.Sealed, err = s.cfg.RecoveryKey.Seal(s.cfg.Store.ClusterID(), secret); err != nil {
		return err
	}
	return s.attempt(ctx, func(v *raftstore.View) (*raftstore.Txn, error) {
		last, rev, err := read[rotation.Record](v, rotationKey)
		if err != nil {
			return nil, err
		}
		if last.Running() {
			return nil, status.Error(codes.FailedPrecondition, last.Summary()+": `balsa certificates status` shows what it waits for")
		}
		if last != nil {
			rec.Number = last.Number + 1
		}
		if rec.CA != nil && rec.CA.Old != s.Pin() {
			return nil, status.Error(codes.Unavailable, "this server is just changing its CA: try again")
		}
		rec.Started = s.cfg.Now().UTC()
		rec.Changed = rec.Started
		s.cfg.Logger.Info("a rotation begins: every member learns to trust the new keys", "rotation", rec.Number, "ca", rec.CA != nil, "service_account_key", rec.TokenKey != nil)
		return changeRotation(rec, rev)
	})
}

// firstBlocks are the first n blocks of PEM.
func firstBlocks(data []byte, n int) (out []byte) {
	for block, rest := pem.Decode(data); block != nil && n > 0; block, rest = pem.Decode(rest) {
		out = append(out, pem.EncodeToMemory(block)...)
		n--
	}
	return out
}

func changeRotation(rec rotation.Record, rev int64) (*raftstore.Txn, error) {
	op, err := put(rotationKey, rec)
	return &raftstore.Txn{Compares: []raftstore.Compare{raftstore.ModRevisionIs(rotationKey, rev)}, Success: []raftstore.Op{op}}, err
}

// passOver records that the rotation no longer waits for the members and Secrets that are missing now.
func (s *Service) passOver(ctx context.Context) error {
	return s.attempt(ctx, func(v *raftstore.View) (*raftstore.Txn, error) {
		rec, rev, err := read[rotation.Record](v, rotationKey)
		if err != nil {
			return nil, err
		}
		if !rec.Running() {
			return nil, status.Error(codes.FailedPrecondition, "no rotation is under way")
		}
		_, waits := rec.Next(s.rotationFacts(ctx, v, rec))
		for _, w := range waits {
			s.cfg.Logger.Warn("at an administrator's request the rotation continues without the members and Secrets that it waited for", "rotation", rec.Number, "waited_for", w.String())
			rec.PassedOver = append(rec.PassedOver, w.Name)
		}
		return changeRotation(*rec, rev)
	})
}

// GetRotation implements clusterpb.ClusterServer.
func (s *Service) GetRotation(ctx context.Context, _ *clusterpb.GetRotationRequest) (*clusterpb.Rotation, error) {
	if _, err := s.authorize(ctx, managers); err != nil {
		return nil, err
	}
	v, err := s.cfg.Store.Barrier(ctx)
	if err != nil {
		return nil, wire(err)
	}
	return s.rotationNow(ctx, v)
}

func (s *Service) rotationNow(ctx context.Context, v *raftstore.View) (*clusterpb.Rotation, error) {
	rec, _, err := read[rotation.Record](v, rotationKey)
	if err != nil {
		return nil, wire(err)
	}
	answer := &clusterpb.Rotation{Summary: rec.Summary()}
	if rec == nil {
		return answer, nil
	}
	answer.Number, answer.Phase, answer.PassedOver = rec.Number, string(rec.Phase), rec.PassedOver
	if rec.Running() {
		_, waits := rec.Next(s.rotationFacts(ctx, v, rec))
		for _, w := range waits {
			answer.Waits = append(answer.Waits, w.String())
		}
	}
	return answer, nil
}

// rotationFacts collects the input of the decision about the next step.
func (s *Service) rotationFacts(ctx context.Context, v *raftstore.View, rec *rotation.Record) rotation.Facts {
	f := rotation.Facts{Members: s.rotationMembers(v), Now: s.cfg.Now()}
	if rec.Phase != rotation.Issue || rec.TokenKey == nil || s.cfg.StaleSecrets == nil {
		return f
	}
	var err error
	if f.StaleSecrets, err = s.cfg.StaleSecrets(ctx, rec.TokenKey.Old); err != nil {
		f.StaleSecrets = []string{"(the token Secrets cannot be listed: " + err.Error() + ")"}
	}
	return f
}

// rotationMembers are all servers and agents on record, by name, and the servers of Raft's configuration that have no record
// yet: these have confirmed nothing.
func (s *Service) rotationMembers(v *raftstore.View) (list []rotation.Member) {
	records := Records(v)
	servers, err := s.cfg.Store.Servers()
	if err != nil {
		list = append(list, rotation.Member{Name: "(unknown: " + err.Error() + ")", Server: true})
	}
	for _, srv := range servers {
		if _, ok := records[srv.ID]; !ok {
			list = append(list, rotation.Member{Name: short(srv.ID), Server: true})
		}
	}
	for _, rec := range records {
		list = append(list, rotation.Member{Name: rec.Name, Server: true, Holds: rec.Holds})
	}
	for name, rec := range readAll[nodeRecord](v, nodesPrefix) {
		list = append(list, rotation.Member{Name: name, Holds: rec.Holds})
	}
	slices.SortFunc(list, func(a, b rotation.Member) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// ConfirmKeys implements clusterpb.ClusterServer.
func (s *Service) ConfirmKeys(ctx context.Context, r *clusterpb.ConfirmKeysRequest) (*clusterpb.ConfirmKeysResponse, error) {
	who, err := s.authorize(ctx, nodeCaller)
	if err != nil {
		return nil, err
	}
	holds := rotation.Holds{Trusts: r.Trusts, IssuedBy: r.IssuedBy, PodsHold: r.PodsHold}
	if len(r.Trusts) > maxHoldsPins || slices.ContainsFunc(append(slices.Clone(r.Trusts), r.IssuedBy, r.PodsHold), func(s string) bool { return len(s) > maxHoldsBytes }) {
		return nil, status.Errorf(codes.InvalidArgument, "at most %d CAs, and names of %d bytes", maxHoldsPins, maxHoldsBytes)
	}
	err = s.attempt(ctx, func(v *raftstore.View) (*raftstore.Txn, error) {
		rec, rev, err := read[nodeRecord](v, nodesPrefix+who.id)
		if err != nil {
			return nil, err
		}
		if rec == nil || !rec.has(keyOf(who.cert)) {
			return nil, errNotThisNode(who.id)
		}
		if rec.Holds.Equal(holds) {
			return nil, nil
		}
		rec.Holds = holds
		op, err := put(nodesPrefix+who.id, rec)
		return &raftstore.Txn{Compares: []raftstore.Compare{raftstore.ModRevisionIs(nodesPrefix+who.id, rev)}, Success: []raftstore.Op{op}}, err
	})
	return &clusterpb.ConfirmKeysResponse{}, wire(err)
}

// errMissed is the error of a server that was off while the CA was replaced, and has no copy of the new CA.
var errMissed = errors.New("the cluster CA was rotated without this server: remove it (`balsa members remove`), empty its data directory (server/) and join it with a new token")

// useRotation installs the keys of the rotation's record on this server, once for each version of the record.
func (s *Service) useRotation() {
	rec, rev, err := read[rotation.Record](s.cfg.Store.View(), rotationKey)
	if err != nil || rec == nil || rev == s.rotated {
		return
	}
	set, err := s.keySet(rec)
	if err == nil {
		err = s.cfg.PKI.UseKeys(set)
	}
	if err != nil {
		s.cfg.Logger.Error("this server cannot use the keys of the rotation; it tries again and the rotation waits", "rotation", rec.Number, "phase", string(rec.Phase), "err", err)
		return
	}
	s.rotated = rev
}

// keySet returns the keys for the rotation's phase.
func (s *Service) keySet(rec *rotation.Record) (pki.KeySet, error) {
	set := pki.KeySet{Links: rec.Links}
	both := rec.Phase == rotation.Trust || rec.Phase == rotation.Issue
	if rec.CA != nil {
		set.Trusted = slices.Clone(rec.CA.NewPEM)
		if both {
			set.Trusted = append(slices.Clone(rec.CA.OldPEM), set.Trusted...)
		}
	}
	if rec.TokenKey != nil {
		set.TokenKeys = slices.Clone(rec.TokenKey.NewPEM)
		if both {
			set.TokenKeys = append(slices.Clone(rec.TokenKey.OldPEM), set.TokenKeys...)
		}
	}
	set.Retired = rec.Retired
	if both && rec.CA != nil {
		set.Retired = bytesWithout(rec.Retired, rec.CA.Old)
	}
	if rec.Phase == rotation.Trust {
		return set, nil
	}
	if len(rec.Sealed) == 0 {
		if rec.CA != nil && rec.CA.New != s.Pin() || rec.TokenKey != nil && rec.TokenKey.New != pki.KeyID(s.cfg.PKI.ServiceAccountKey().Public()) {
			return set, errMissed
		}
		return set, nil
	}
	secret, err := s.cfg.RecoveryKey.Open(s.cfg.Store.ClusterID(), rec.Sealed)
	if err != nil {
		return set, fmt.Errorf("cluster: the new keys cannot be decrypted with the recovery key: %w", err)
	}
	var fresh newKeys
	if err := json.Unmarshal(secret, &fresh); err != nil {
		return set, errors.New("cluster: the record of the rotation holds no keys") // the error's text could hold a part of one
	}
	set.CA, set.TokenKey = fresh.CA, fresh.TokenKey
	return set, nil
}

// bytesWithout leaves the certificate with a pin out of PEM.
func bytesWithout(certs []byte, pin string) (out []byte) {
	for block, rest := pem.Decode(certs); block != nil; block, rest = pem.Decode(rest) {
		if pki.Pin(block.Bytes) != pin {
			out = append(out, pem.EncodeToMemory(block)...)
		}
	}
	return out
}

// holds returns the keys that this server confirms to use.
func (s *Service) holds() rotation.Holds {
	authority := s.cfg.PKI
	h := rotation.Holds{Trusts: authority.Trusts(), IssuedBy: authority.IssuedBy(), Verifies: authority.TokenKeyIDs()}
	h.Signs = h.Verifies[0]
	h.PodsHold = h.Signs
	if s.cfg.PodsHold != nil {
		h.PodsHold = s.cfg.PodsHold()
	}
	return h
}

// advanceRotation takes the next step of the rotation if all its conditions hold. It returns when to check again conditions
// for which there is no event; 0 if there are none. Only the leader does this.
func (s *Service) advanceRotation(ctx context.Context) time.Duration {
	v := s.cfg.Store.View()
	rec, rev, err := read[rotation.Record](v, rotationKey)
	if err != nil || !rec.Running() {
		s.waited = ""
		return 0
	}
	next, waits := rec.Next(s.rotationFacts(ctx, v, rec))
	if next == nil {
		s.logWaits(rec, waits)
		return s.nextLook(rec, waits)
	}
	txn, err := changeRotation(*next, rev)
	if err == nil {
		_, err = s.cfg.Store.Txn(ctx, *txn) // if the record has changed meanwhile, its change wakes us
	}
	if err != nil && ctx.Err() == nil {
		s.cfg.Logger.Warn("cannot write the next step of the rotation; the leader tries again", "rotation", rec.Number, "phase", string(rec.Phase), "err", err)
		return 0
	}
	if next.Phase != rec.Phase {
		s.cfg.Logger.Info(next.Summary(), "rotation", next.Number, "phase", string(next.Phase))
	}
	return 0
}

// nextLook is after how long what no record tells may have changed.
func (s *Service) nextLook(rec *rotation.Record, waits []rotation.Wait) time.Duration {
	if rec.Phase != rotation.Issue || rec.TokenKey == nil {
		return 0
	}
	if !rec.Refreshed.IsZero() {
		if left := rec.Refreshed.Add(rec.Grace).Sub(s.cfg.Now()); left > 0 {
			return left
		}
	}
	if strings.HasPrefix(waits[0].Name, "secret ") {
		return staleLook
	}
	return 0
}

// logWaits logs what the rotation waits for when that changes.
func (s *Service) logWaits(rec *rotation.Record, waits []rotation.Wait) {
	lines := make([]string, 0, len(waits))
	for _, w := range waits[:min(len(waits), 16)] {
		lines = append(lines, w.String())
	}
	text := strings.Join(lines, "; ")
	if text == s.waited {
		return
	}
	s.waited = text
	s.cfg.Logger.Info("the rotation waits", "rotation", rec.Number, "phase", string(rec.Phase), "for", text, "of", len(waits))
}

// watchRecords wakes followChanges when a record of a member or of the rotation changes, until ctx ends.
func (s *Service) watchRecords(ctx context.Context) error {
	for ctx.Err() == nil {
		from := s.cfg.Store.View().Revision() + 1
		s.wakeUp()
		// All prefixes of members, and nothing that changes often, lie between these two keys.
		err := awaitRange(ctx, s.cfg.Store, raftstore.WatchRequest{Key: membersPrefix, RangeEnd: raftstore.PrefixEnd(rotationKey), StartRevision: from})
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (s *Service) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
