package admission

import (
	"context"

	"k8s.io/apiserver/pkg/admission"

	"github.com/balsahq/balsa/control/auth/live"
)

// unlimited is the ResourceQuota plugin, asked about namespaces that have a quota. It has one goroutine decide about all
// objects of a namespace, one after the other, and so costs each of them two changes of goroutine to learn that there is
// no quota.
type unlimited struct {
	admission.ValidationInterface
	quotas *live.Indexer
}

// Validate implements admission.ValidationInterface.
func (u unlimited) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	limited := false
	u.quotas.EachKey(a.GetNamespace(), func(string, int64) bool {
		limited = true
		return false
	})
	if !limited {
		return nil
	}
	return u.ValidationInterface.Validate(ctx, a, o)
}
