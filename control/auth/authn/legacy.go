package authn

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// SignSecret makes the token of an account that a Secret of type kubernetes.io/service-account-token will hold. It has no
// end of life: it is good for as long as the Secret is there.
func (a *Authenticators) SignSecret(sa *v1.ServiceAccount, secret *v1.Secret) (string, error) {
	public, private := serviceaccount.LegacyClaims(*sa, *secret)
	token, err := a.keys.forSecret(public, private)
	if err != nil {
		return "", fmt.Errorf("sign the token of secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return token, nil
}
