package authn

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/balsahq/balsa/control/auth/listers"
)

// confirmed looks again before a token is refused for what it is bound to: that may have been made through another
// server a moment ago. A token of nobody's is refused without asking.
type confirmed struct {
	authenticator.Token
	store *listers.Store
}

// AuthenticateToken implements authenticator.Token.
func (c confirmed) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	since := c.store.Revision()
	response, ok, err := c.Token.AuthenticateToken(ctx, token)
	if ok || err == nil || !c.store.Confirm(ctx, since) {
		return response, ok, err
	}
	return c.Token.AuthenticateToken(ctx, token)
}
