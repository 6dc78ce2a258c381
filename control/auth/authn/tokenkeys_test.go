package authn

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/balsahq/balsa/control/auth/pki"
)

// twoKeys are keys as they are at one moment of a rotation, the one that signs first.
type twoKeys struct {
	now atomic.Pointer[[]*ecdsa.PrivateKey]
}

func (k *twoKeys) set(keys ...*ecdsa.PrivateKey)    { k.now.Store(&keys) }
func (k *twoKeys) ServiceAccountKey() crypto.Signer { return (*k.now.Load())[0] }
func (k *twoKeys) TokenKeys() (out []crypto.PublicKey) {
	for _, key := range *k.now.Load() {
		out = append(out, key.Public())
	}
	return out
}

func TestTokensFollowTheKeysOfARotation(t *testing.T) {
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	before, after := key(), key()
	keys := &twoKeys{}
	keys.set(before)
	ring, err := newKeyring(Config{ServiceAccountKeys: keys, Issuer: DefaultIssuer}, "example.com")
	if err != nil {
		t.Fatal(err)
	}
	published := func() (ids []string) {
		answer := httptest.NewRecorder()
		ring.document("application/jwk-set+json", serviceaccount.OpenIDMetadataProvider.GetKeysetJSON).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/", nil))
		var set struct{ Keys []struct{ Kid string } }
		if err := json.Unmarshal(answer.Body.Bytes(), &set); err != nil {
			t.Fatal(err)
		}
		for _, k := range set.Keys {
			ids = append(ids, k.Kid)
		}
		return ids
	}
	signs := func() string {
		token, err := ring.GenerateToken(t.Context(), &jwt.Claims{}, struct{}{})
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := jwt.ParseSigned(token)
		if err != nil {
			t.Fatal(err)
		}
		return parsed.Headers[0].KeyID
	}
	counts := func(k *ecdsa.PrivateKey) bool {
		return len(ring.GetPublicKeys(t.Context(), pki.KeyID(k.Public()))) == 1
	}
	for _, c := range []struct {
		phase         string
		keys          []*ecdsa.PrivateKey
		old, new      bool
		signer        *ecdsa.PrivateKey
		publishedKeys int
	}{
		{"before", []*ecdsa.PrivateKey{before}, true, false, before, 1}, {"trust", []*ecdsa.PrivateKey{before, after}, true, true, before, 2},
		{"issue", []*ecdsa.PrivateKey{after, before}, true, true, after, 2}, {"retire", []*ecdsa.PrivateKey{after}, false, true, after, 1},
	} {
		keys.set(c.keys...)
		if counts(before) != c.old || counts(after) != c.new {
			t.Errorf("%s: the old key counts: %v, the new: %v", c.phase, counts(before), counts(after))
		}
		if got := signs(); got != pki.KeyID(c.signer.Public()) {
			t.Errorf("%s: another key signs: %s", c.phase, got)
		}
		if ids := published(); len(ids) != c.publishedKeys {
			t.Errorf("%s: %d keys are published", c.phase, len(ids))
		}
	}
}
