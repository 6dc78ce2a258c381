// Package clusterkeys is what controllers publish of the cluster's CA and of the key that signs service-account tokens. Both
// may be rotated while a controller runs. It holds no key itself.
package clusterkeys

import (
	"context"

	"github.com/balsahq/balsa/leader/workqueue"
)

// Source is the keys of the server on which the leader runs. Without RootCA there are none.
type Source struct {
	// RootCA returns the certificates, PEM, by which clients verify the API.
	RootCA func() []byte
	// Stale reports whether another key than the one of now signed a token. Nil: no token is stale.
	Stale func(token []byte) bool
	// Changed returns a channel that is closed when one of the other answers changes after the call. Nil: none does.
	Changed func() <-chan struct{}
}

// Bundle is RootCA, or nothing.
func (s Source) Bundle() []byte {
	if s.RootCA == nil {
		return nil
	}
	return s.RootCA()
}

// IsStale is Stale, or false.
func (s Source) IsStale(token []byte) bool { return s.Stale != nil && s.Stale(token) }

// Follow calls changed at its start and at each change, until ctx ends.
func (s Source) Follow(changed func()) workqueue.Runner {
	return workqueue.RunnerFunc(func(ctx context.Context) error {
		for {
			var next <-chan struct{}
			if s.Changed != nil {
				next = s.Changed() // before changed looks
			}
			changed()
			select {
			case <-ctx.Done():
				return nil
			case <-next:
			}
		}
	})
}
