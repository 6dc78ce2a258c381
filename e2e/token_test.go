package e2e

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
)

// TestTokenSecretsAreFilled: a Secret of type service-account-token gets a token that the API accepts as the account's,
// until the Secret is deleted.
func TestTokenSecretsAreFilled(t *testing.T) {
	c := start(t)
	c.apply(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: robot}
---
apiVersion: v1
kind: Secret
metadata: {name: robot-token, annotations: {kubernetes.io/service-account.name: robot}}
type: kubernetes.io/service-account-token
`)
	var token string
	c.eventually("the Secret holds a token", func() error {
		encoded, err := c.Kubectl(t.Context(), "get", "secret", "robot-token", "-o", "jsonpath={.data.token}")
		if err != nil || encoded == "" {
			return errors.Join(errors.New("no token yet"), err)
		}
		raw, err := base64.StdEncoding.DecodeString(encoded)
		token = string(raw)
		return err
	})
	whoami := []string{"--kubeconfig=/dev/null", "--server=https://127.0.0.1:6443", "--insecure-skip-tls-verify", "--token=" + token, "auth", "whoami"}
	if out := c.kubectl(whoami...); !strings.Contains(out, "system:serviceaccount:default:robot") {
		t.Errorf("the token is somebody else's:\n%s", out)
	}
	c.kubectl("delete", "secret", "robot-token")
	c.eventually("a token without its Secret is refused", func() error {
		if out, err := c.Kubectl(t.Context(), whoami...); err == nil {
			return errors.New(out)
		}
		return nil
	})
}
