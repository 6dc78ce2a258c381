package authz

import (
	"context"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/balsahq/balsa/control/auth/listers"
)

// confirmed reads the newest state and authorizes again before a request is denied: another server may have written the
// binding that allows it a moment ago.
type confirmed struct {
	authorizer.Authorizer
	store *listers.Store
}

// Authorize implements authorizer.Authorizer.
func (c confirmed) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	since := c.store.Revision()
	decision, reason, err := c.Authorizer.Authorize(ctx, a)
	if decision == authorizer.DecisionAllow || !c.store.Confirm(ctx, since) {
		return decision, reason, err
	}
	return c.Authorizer.Authorize(ctx, a)
}
