package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/balsahq/balsa/raftstore"
)

// Create implements storage.Interface.
func (s *store) Create(ctx context.Context, key string, obj, out runtime.Object, seconds uint64) error {
	key, err := s.key(key, false)
	if err != nil {
		return err
	}
	if version, err := s.versioner.ObjectResourceVersion(obj); err == nil && version != 0 {
		return versionedError{apierrors.NewBadRequest(storage.ErrResourceVersionSetOnCreate.Error())}
	}
	if err := s.versioner.PrepareObjectForStorage(obj); err != nil {
		return fmt.Errorf("PrepareObjectForStorage failed: %w", err)
	}
	data, err := runtime.Encode(s.Codec, obj)
	if err != nil {
		return err
	}
	result, err := s.writeKey(ctx, key, 0, data, seconds)
	if err != nil {
		return err
	}
	if result.conflict {
		return storage.NewKeyExistsError(key, 0)
	}
	if out == nil {
		return nil
	}
	return s.reader.decodeInto(data, out, result.revision)
}

// writeKey writes data to key, provided that it was last written at rev, with a time to live in seconds (0: forever).
func (s *store) writeKey(ctx context.Context, key string, rev int64, data []byte, seconds uint64) (outcome, error) {
	value, err := s.reader.transformer.TransformToStorage(ctx, data, authenticated(key))
	if err != nil {
		return outcome{}, storage.NewInternalError(err)
	}
	op := &raftstore.Op{Type: raftstore.OpPut, Key: key, Value: value}
	for retried := false; ; retried = true {
		if seconds != 0 {
			if op.Lease, err = s.leases.lease(ctx, ttl(seconds)); err != nil {
				return outcome{}, storeError(err)
			}
		}
		result, err := s.commit(ctx, key, rev, op)
		if op.Lease != 0 && !retried && errors.Is(err, raftstore.ErrLeaseNotFound) {
			// The lease was shared with earlier objects and expired before this write.
			s.leases.forget(op.Lease)
			continue
		}
		return result, storeError(err)
	}
}

// state is the object from which an attempt of an update or a deletion starts.
type state struct {
	obj  runtime.Object // the caller may change it; nil when it was not read
	data []byte         // its encoding, nil when it does not exist
	rev  int64          // 0: does not exist
	// stale: write the bytes again even if nothing changes.
	stale bool
	// current: the state was read with a barrier, or comes from the store's answer to a write. Otherwise it is a guess.
	// A write may start from a guess, because the write checks it, but may not fail because of it.
	current bool
}

// source reads the states of one key.
type source struct {
	s      *store
	key    string
	target reflect.Value // of the type to decode to
	// absent: a key that does not exist gives a zero object instead of an error.
	absent bool
	// unread: read only the revision, to delete an object that cannot be decoded.
	unread bool
}

// startState returns the state of the first attempt: the caller's suggestion, or the state that this server has applied.
func (f source) startState(ctx context.Context, suggestion runtime.Object) (*state, error) {
	if suggestion != nil {
		return f.s.suggested(suggestion)
	}
	kv := f.s.kv.View().Get(f.key)
	if kv == nil && !f.absent {
		return f.newestState(ctx)
	}
	return f.read(ctx, kv, false)
}

// newestState returns a state with every acknowledged write.
func (f source) newestState(ctx context.Context) (*state, error) {
	view, err := f.s.barrier(ctx)
	if err != nil {
		return nil, storeError(err)
	}
	return f.read(ctx, view.Get(f.key), true)
}

func (f source) read(ctx context.Context, kv *raftstore.KeyValue, current bool) (*state, error) {
	st := &state{current: current}
	if kv == nil && !f.absent {
		return nil, storage.NewKeyNotFoundError(f.key, 0)
	}
	if f.unread && kv != nil {
		st.rev, st.stale = kv.ModRevision, true
		return st, nil
	}
	if u, ok := f.target.Addr().Interface().(runtime.Unstructured); ok {
		st.obj = u.NewEmptyInstance()
	} else {
		st.obj = reflect.New(f.target.Type()).Interface().(runtime.Object)
	}
	if kv == nil {
		return st, runtime.SetZeroValue(st.obj)
	}
	st.rev = kv.ModRevision
	var err error
	if st.data, st.stale, err = f.s.reader.decrypt(ctx, kv); err != nil {
		return nil, readError(err)
	}
	if d := f.s.reader.cached(kv); d != nil && fits(d.obj, st.obj) {
		assign(st.obj, d.obj.DeepCopyObject())
		return st, nil
	}
	return st, f.s.reader.decodeInto(st.data, st.obj, st.rev)
}

// suggested makes a state from an object that the caller already has.
func (s *store) suggested(obj runtime.Object) (*state, error) {
	rev, err := s.versioner.ObjectResourceVersion(obj)
	if err != nil {
		return nil, fmt.Errorf("couldn't get resource version: %w", err)
	}
	// The encoding does not contain the resourceVersion.
	if err := s.versioner.PrepareObjectForStorage(obj); err != nil {
		return nil, fmt.Errorf("PrepareObjectForStorage failed: %w", err)
	}
	data, err := runtime.Encode(s.Codec, obj)
	if err != nil {
		return nil, err
	}
	s.reader.setVersion(obj, int64(rev))
	return &state{obj: obj, data: data, rev: int64(rev)}, nil
}

// Delete implements storage.Interface.
func (s *store) Delete(
	ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, suggestion runtime.Object, opts storage.DeleteOptions,
) error {
	key, err := s.key(key, false)
	if err != nil {
		return err
	}
	target, err := conversion.EnforcePtr(out)
	if err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %w", err)
	}
	from := source{s: s, key: key, target: target, unread: opts.IgnoreStoreReadError && unsafeDeletion()}
	st, err := from.startState(ctx, suggestion)
	if err != nil {
		return err
	}
	for {
		err := preconditions.Check(key, st.obj)
		if err == nil {
			err = validate(ctx, st.obj)
		}
		if err != nil {
			if st, err = from.recheck(ctx, st, err); err != nil {
				return err
			}
			continue
		}
		result, err := s.commit(ctx, key, st.rev, &raftstore.Op{Type: raftstore.OpDelete, Key: key})
		if err != nil {
			return storeError(err)
		}
		if result.conflict {
			if st, err = from.read(ctx, result.current, true); err != nil {
				return err
			}
			continue
		}
		if from.unread {
			return nil
		}
		return s.reader.decodeInto(st.data, out, result.revision)
	}
}

// recheck is called when an attempt on st failed with reason. If st was only a guess, it returns the newest state to
// try again with. It returns reason if st was current, or if the newest state is the same.
func (f source) recheck(ctx context.Context, st *state, reason error) (*state, error) {
	if st.current {
		return nil, reason
	}
	newest, err := f.newestState(ctx)
	if err != nil {
		return nil, err
	}
	if newest.rev == st.rev {
		return nil, reason
	}
	return newest, nil
}

// GuaranteedUpdate implements storage.Interface.
func (s *store) GuaranteedUpdate(
	ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, suggestion runtime.Object,
) error {
	key, err := s.key(key, false)
	if err != nil {
		return err
	}
	target, err := conversion.EnforcePtr(destination)
	if err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %w", err)
	}
	from := source{s: s, key: key, target: target, absent: ignoreNotFound}
	st, err := from.startState(ctx, suggestion)
	if err != nil {
		return err
	}
	for {
		updated, seconds, err := s.tryUpdate(key, st, preconditions, tryUpdate)
		if err != nil {
			if st, err = from.recheck(ctx, st, err); err != nil {
				return err
			}
			continue
		}
		data, err := runtime.Encode(s.Codec, updated)
		if err != nil {
			return err
		}
		if bytes.Equal(data, st.data) && !st.stale {
			if st, err = from.unchanged(ctx, st, destination); st == nil || err != nil {
				return err
			}
			continue
		}
		result, err := s.writeKey(ctx, key, st.rev, data, seconds)
		if err != nil {
			return err
		}
		if result.conflict {
			if st, err = from.read(ctx, result.current, true); err != nil {
				return err
			}
			continue
		}
		return s.reader.decodeInto(data, destination, result.revision)
	}
}

// tryUpdate returns what the caller makes of st, and its time to live in seconds.
func (s *store) tryUpdate(key string, st *state, pre *storage.Preconditions, update storage.UpdateFunc) (runtime.Object, uint64, error) {
	if err := pre.Check(key, st.obj); err != nil {
		return nil, 0, err
	}
	updated, seconds, err := update(st.obj, storage.ResponseMeta{ResourceVersion: uint64(st.rev)})
	if err != nil {
		return nil, 0, err
	}
	if err := s.versioner.PrepareObjectForStorage(updated); err != nil {
		return nil, 0, fmt.Errorf("PrepareObjectForStorage failed: %w", err)
	}
	if seconds == nil {
		return updated, 0, nil
	}
	return updated, *seconds, nil
}

// unchanged finishes an update of st that changes nothing. It writes no revision of the object, but does the extras, if
// there are any. It returns a state to try again with if the object has changed meanwhile, or has to be rewritten;
// otherwise nil.
func (f source) unchanged(ctx context.Context, st *state, destination runtime.Object) (*state, error) {
	data := st.data
	if !st.current {
		var err error
		if st, err = f.newestState(ctx); err != nil {
			return nil, err
		}
		if st.stale || !bytes.Equal(data, st.data) {
			return st, nil
		}
	}
	if !extrasOf(ctx).empty() {
		result, err := f.s.commit(ctx, f.key, st.rev, nil)
		if err != nil {
			return nil, storeError(err)
		}
		if result.conflict {
			return f.read(ctx, result.current, true)
		}
	}
	return nil, f.s.reader.decodeInto(st.data, destination, st.rev)
}
