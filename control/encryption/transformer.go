package encryption

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
)

// LockedError: a stored object cannot be decrypted on this server.
type LockedError struct {
	Resource schema.GroupResource
	With     Header // how it is encrypted
	Err      error
}

// Error implements error.
func (e *LockedError) Error() string {
	switch {
	case e.With.Provider == "":
		return fmt.Sprintf("%s are stored without encryption, and the encryption configuration does not allow that: add the provider identity: {} as their last one until `balsa secrets reencrypt` has rewritten them",
			e.Resource)
	case e.With.Provider == "kms":
		return fmt.Sprintf("%s stored with %s cannot be decrypted: the plug-in must be in this server's encryption configuration, run, and know the key: %v",
			e.Resource, e.With, e.Err)
	}
	return fmt.Sprintf("%s stored with %s cannot be decrypted: this server's encryption configuration (--encryption-provider-config) lacks the key for them, or has another secret under its name: %v",
		e.Resource, e.With, e.Err)
}

// Unwrap implements errors.
func (e *LockedError) Unwrap() error { return e.Err }

// transformer applies the current configuration to one resource.
type transformer struct {
	e    *Encryption
	gr   schema.GroupResource
	last atomic.Pointer[resolved]
}

// resolved is the transformer of one generation, nil for a resource that the configuration does not name.
type resolved struct {
	from *generation
	value.Transformer
}

func (t *transformer) resolve() (*resolved, error) {
	g := t.e.current.Load()
	if g == nil {
		return nil, ErrNotStarted
	}
	if r := t.last.Load(); r != nil && r.from == g {
		return r, nil
	}
	r := &resolved{from: g}
	if g.names(t.gr) {
		r.Transformer = g.transformers.TransformerForResource(t.gr)
	}
	t.last.Store(r)
	return r, nil
}

// names reports whether the configuration names a resource.
func (g *generation) names(gr schema.GroupResource) bool {
	for _, rule := range []schema.GroupResource{gr, {Group: gr.Group, Resource: "*"}, {Group: "*", Resource: "*"}} {
		if _, ok := g.transformers[rule]; ok {
			return true
		}
	}
	return false
}

var errNotNamed = errors.New("no provider is configured for the resource")

// TransformFromStorage implements value.Transformer.
func (t *transformer) TransformFromStorage(ctx context.Context, data []byte, at value.Context) ([]byte, bool, error) {
	plain, stale, err := t.open(ctx, data, at)
	if err != nil {
		return nil, false, t.e.note(t.gr, data, err)
	}
	return plain, stale, nil
}

// open is TransformFromStorage without recording faults.
func (t *transformer) open(ctx context.Context, data []byte, at value.Context) ([]byte, bool, error) {
	r, err := t.resolve()
	switch {
	case err != nil:
		return nil, false, err
	case r.Transformer != nil:
		return r.Transformer.TransformFromStorage(ctx, data, at)
	case bytes.HasPrefix(data, []byte(mark)):
		return nil, false, errNotNamed
	}
	return data, false, nil
}

// TransformToStorage implements value.Transformer.
func (t *transformer) TransformToStorage(ctx context.Context, data []byte, at value.Context) ([]byte, error) {
	r, err := t.resolve()
	if err != nil {
		return nil, err
	}
	if r.Transformer == nil {
		return data, nil
	}
	stored, err := r.Transformer.TransformToStorage(ctx, data, at)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be encrypted: %w", t.gr, err)
	}
	return stored, nil
}
