package cluster

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/raftstore"
)

// ErrRevoked means that the certificate is of an agent that was removed or replaced.
var ErrRevoked = errors.New("the certificate is of a node that was removed")

// maxForgotten bounds the expired revocations that one transaction deletes.
const maxForgotten = 64

// revocation refuses the certificates of one key until they have expired anyhow.
type revocation struct {
	Name  string    `json:"name"` // of the node
	Until time.Time `json:"until"`
}

// Revoked returns ErrRevoked for a revoked certificate of the cluster's CA. It costs one read of the view, for nodes'
// certificates only.
func Revoked(v *raftstore.View, c *x509.Certificate) error {
	name := c.Subject.CommonName
	if name != pki.ServicesUser && !strings.HasPrefix(name, pki.NodePrefix) {
		return nil
	}
	if v.Get(revokedPrefix+keyOf(c)) == nil {
		return nil
	}
	return fmt.Errorf("%w: join again with a token", ErrRevoked)
}

// keys are those of the node's certificates, each once: a node may use one for several.
func (n *nodeRecord) keys() (list []string) {
	for _, key := range []string{n.Key, n.Previous, n.Services, n.WasServices} {
		if key != "" && !slices.Contains(list, key) {
			list = append(list, key)
		}
	}
	return list
}

// revoke adds to txn that the certificates of an agent are refused from now on. It also deletes expired revocations.
func revoke(v *raftstore.View, txn *raftstore.Txn, name string, rec nodeRecord, now time.Time) error {
	forgotten := 0
	v.Ascend(revokedPrefix, raftstore.PrefixEnd(revokedPrefix), func(kv *raftstore.KeyValue) bool {
		var old revocation
		if json.Unmarshal(kv.Value, &old) == nil && now.After(old.Until) {
			txn.Success = append(txn.Success, del(kv.Key))
			forgotten++
		}
		return forgotten < maxForgotten
	})
	if now.After(rec.Expires) {
		return nil
	}
	for _, key := range rec.keys() {
		// Of the certificates of one renewal the newest ends last; the hour is for the one for Services, signed after it.
		op, err := put(revokedPrefix+key, revocation{Name: name, Until: rec.Expires.Add(time.Hour).UTC()})
		if err != nil {
			return err
		}
		txn.Success = append(txn.Success, op)
	}
	return nil
}

// restore adds to txn the deletion of an agent's revocations, when it joins again with the same keys after its removal.
func restore(v *raftstore.View, txn *raftstore.Txn, rec nodeRecord) {
	for _, key := range rec.keys() {
		if v.Get(revokedPrefix+key) != nil {
			txn.Success = append(txn.Success, del(revokedPrefix+key))
		}
	}
}
