package authn

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// SignSecret returns the token for a Secret of type kubernetes.io/service-account-token. The token does not expire: it
// is valid as long as the Secret exists.
func (a *Authenticators) SignSecret(sa *v1.ServiceAccount, secret *v1.Secret) (string, error) {
	public, private := serviceaccount.LegacyClaims(*sa, *secret)
	token, err := a.keys.forSecret(public, private)
	if err != nil {
		return "", fmt.Errorf("sign the token of secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return token, nil
}
