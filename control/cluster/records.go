package cluster

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/balsahq/balsa/control/auth/rotation"
	"github.com/balsahq/balsa/raftstore"
)

// Prefixes of the service's records. Records are JSON, so that later versions may add fields.
const (
	membersPrefix  = "/balsa/members/" // by server ID
	nodesPrefix    = "/balsa/nodes/"   // by node name
	removedPrefix  = "/balsa/removed/" // by server ID: removed for good
	revokedPrefix  = "/balsa/revoked/" // by public key, of agents that were removed
	tokensPrefix   = "/balsa/tokens/"  // by token ID
	gossipKey      = "/balsa/gossip/keys"
	leaderPrefix   = "/balsa/leadership/" // of raftstore's leaderships
	maxRecordBytes = 64 << 10
)

// MemberRecord is the stored record of a server.
type MemberRecord struct {
	Name      string    `json:"name"`
	Addresses []string  `json:"addresses"`       // host:port of the one port
	Names     []string  `json:"names,omitempty"` // others by which clients know its API: --tls-san
	Version   string    `json:"version"`
	Protocol  int       `json:"protocol"`
	Joined    time.Time `json:"joined"`

	Holds rotation.Holds `json:"holds,omitzero"` // which CAs and keys it has in use
}

// nodeRecord is what the store keeps of an agent. Its keys are SHA-256 sums of public keys; previous is the one that
// renewed to key, and counts until its certificate expires: the answer to a renewal may have been lost. Services and
// WasServices are the same of the certificate with which the node reads Services; older records have none.
type nodeRecord struct {
	Key         string    `json:"key"`
	Previous    string    `json:"previous,omitempty"`
	Services    string    `json:"services,omitempty"`
	WasServices string    `json:"wasServices,omitempty"`
	Expires     time.Time `json:"expires"` // of the certificate
	Addresses   []string  `json:"addresses,omitempty"`
	Version     string    `json:"version"`
	Joined      time.Time `json:"joined"`

	Holds rotation.Holds `json:"holds,omitzero"` // which CAs and keys it has confirmed to use
}

func (n *nodeRecord) has(key string) bool { return key != "" && (n.Key == key || n.Previous == key) }

// keyOf returns the name of a certificate's public key in records.
func keyOf(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// read decodes a record; nil when there is none.
func read[T any](v *raftstore.View, key string) (*T, int64, error) {
	kv := v.Get(key)
	if kv == nil {
		return nil, 0, nil
	}
	rec := new(T)
	if err := json.Unmarshal(kv.Value, rec); err != nil {
		return nil, 0, fmt.Errorf("cluster: record %s: %w", key, err)
	}
	return rec, kv.ModRevision, nil
}

// readAll decodes all records under a prefix, by what follows it. A record that cannot be decoded is left out, because a
// newer version wrote it.
func readAll[T any](v *raftstore.View, prefix string) map[string]T {
	out := map[string]T{}
	v.Ascend(prefix, raftstore.PrefixEnd(prefix), func(kv *raftstore.KeyValue) bool {
		var rec T
		if json.Unmarshal(kv.Value, &rec) == nil {
			out[kv.Key[len(prefix):]] = rec
		}
		return true
	})
	return out
}

func put(key string, rec any) (raftstore.Op, error) {
	value, err := json.Marshal(rec)
	if err == nil && len(value) > maxRecordBytes {
		err = fmt.Errorf("cluster: record %s of %d bytes is too large", key, len(value))
	}
	return raftstore.Op{Type: raftstore.OpPut, Key: key, Value: value}, err
}

func del(key string) raftstore.Op { return raftstore.Op{Type: raftstore.OpDelete, Key: key} }

// unchanged returns the condition that no key under a prefix was written after rev.
func unchanged(prefix string, rev int64) raftstore.Compare {
	return raftstore.Compare{Key: prefix, RangeEnd: raftstore.PrefixEnd(prefix), Target: raftstore.CompareMod, Result: raftstore.Less, Int: rev + 1}
}

// attempt repeats a transaction, which build makes from the newest view, until its conditions hold.
func (s *Service) attempt(ctx context.Context, build func(v *raftstore.View) (*raftstore.Txn, error)) error {
	for {
		v, err := s.cfg.Store.Barrier(ctx)
		if err != nil {
			return err
		}
		t, err := build(v)
		if err != nil || t == nil {
			return err
		}
		res, err := s.cfg.Store.Txn(ctx, *t)
		if err != nil || res.Succeeded {
			return err
		}
	}
}

// Records returns the records of all servers by ID.
func Records(v *raftstore.View) map[string]MemberRecord {
	return readAll[MemberRecord](v, membersPrefix)
}
