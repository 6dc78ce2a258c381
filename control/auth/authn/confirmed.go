package authn

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/balsahq/balsa/control/auth/listers"
)

// confirmed reads the newest state before a token is refused because of an object it is bound to: another server may
// have created that object a moment ago. A token that no authenticator recognizes is refused without that read.
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
