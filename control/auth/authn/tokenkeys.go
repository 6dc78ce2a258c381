package authn

import (
	"context"
	"crypto"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// TokenKeys are the keys of service-account tokens, which a rotation replaces while the server runs. *pki.Authority
// implements it.
type TokenKeys interface {
	// ServiceAccountKey signs tokens.
	ServiceAccountKey() crypto.Signer
	// TokenKeys are the public keys whose tokens count, the one that signs first.
	TokenKeys() []crypto.PublicKey
}

// keyring makes upstream's parts from the keys of the moment: a token is judged and signed by what counts when it comes.
type keyring struct {
	keys    TokenKeys
	issuer  string
	openID  func(serviceaccount.PublicKeysGetter) (serviceaccount.OpenIDMetadataProvider, error)
	current atomic.Pointer[keyedParts]
}

// keyedParts are made once for each set of keys.
type keyedParts struct {
	public    []crypto.PublicKey
	getter    serviceaccount.PublicKeysGetter
	metadata  serviceaccount.OpenIDMetadataProvider
	issue     serviceaccount.TokenGenerator // tokens of the issuer
	forSecret serviceaccount.TokenGenerator // tokens that Secrets hold
}

// newKeyring makes the parts once, so that keys that cannot be used are an error at the start.
func newKeyring(cfg Config, external string) (*keyring, error) {
	k := &keyring{keys: cfg.ServiceAccountKeys, issuer: cfg.Issuer}
	k.openID = func(keys serviceaccount.PublicKeysGetter) (serviceaccount.OpenIDMetadataProvider, error) {
		return serviceaccount.NewOpenIDMetadataProvider(cfg.Issuer, "", external, keys)
	}
	_, err := k.parts()
	return k, err
}

// parts returns those of the keys that count now.
func (k *keyring) parts() (*keyedParts, error) {
	public := k.keys.TokenKeys()
	if have := k.current.Load(); have != nil && slices.Equal(have.public, public) {
		return have, nil
	}
	made := &keyedParts{public: public}
	list := make([]any, len(public))
	for i, key := range public {
		list[i] = key
	}
	signer := k.keys.ServiceAccountKey()
	var err error
	if made.getter, err = serviceaccount.StaticPublicKeysGetter(list); err != nil {
		return nil, fmt.Errorf("authn: service account keys: %w", err)
	}
	if made.metadata, err = k.openID(made.getter); err != nil {
		return nil, fmt.Errorf("authn: OpenID discovery: %w", err)
	}
	if made.issue, err = serviceaccount.JWTTokenGenerator(k.issuer, signer); err != nil {
		return nil, fmt.Errorf("authn: token generator: %w", err)
	}
	if made.forSecret, err = serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, signer); err != nil {
		return nil, fmt.Errorf("authn: generator of Secrets' tokens: %w", err)
	}
	if signer.Public() == public[0] { // else the keys changed between the two questions: these parts serve this caller alone
		k.current.Store(made)
	}
	return made, nil
}

// GetPublicKeys implements serviceaccount.PublicKeysGetter.
func (k *keyring) GetPublicKeys(ctx context.Context, keyID string) []serviceaccount.PublicKey {
	p, err := k.parts()
	if err != nil {
		return nil // no token is verified; it cannot happen with keys that newKeyring has taken
	}
	return p.getter.GetPublicKeys(ctx, keyID)
}

// GetCacheAgeMaxSeconds implements serviceaccount.PublicKeysGetter; it is upstream's figure for keys that do not change. A new
// key counts here before any server signs with it.
func (k *keyring) GetCacheAgeMaxSeconds() int {
	if p := k.current.Load(); p != nil {
		return p.getter.GetCacheAgeMaxSeconds()
	}
	return 0
}

// AddListener implements serviceaccount.PublicKeysGetter. Nothing listens: documents are made from the keys of the moment.
func (k *keyring) AddListener(serviceaccount.Listener) {}

// GenerateToken implements serviceaccount.TokenGenerator.
func (k *keyring) GenerateToken(ctx context.Context, claims *jwt.Claims, private any) (string, error) {
	p, err := k.parts()
	if err != nil {
		return "", err
	}
	return p.issue.GenerateToken(ctx, claims, private)
}

// forSecret signs the token that a Secret will hold.
func (k *keyring) forSecret(claims *jwt.Claims, private any) (string, error) {
	p, err := k.parts()
	if err != nil {
		return "", err
	}
	return p.forSecret.GenerateToken(context.Background(), claims, private)
}

// document serves one of the OpenID documents.
func (k *keyring) document(contentType string, body func(serviceaccount.OpenIDMetadataProvider) ([]byte, int)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		p, err := k.parts()
		if err != nil {
			http.Error(w, "the keys of service-account tokens cannot be shown", http.StatusInternalServerError)
			return
		}
		data, maxAge := body(p.metadata)
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", maxAge))
		_, _ = w.Write(data) // the client has gone: nothing to tell
	})
}
