package storage

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"weak"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"

	"github.com/balsahq/balsa/raftstore"
)

// decodeLocks is how many events one reader can decode at once. Watchers of the same event wait until the first of them
// has decoded it.
const decodeLocks = 32

// reader decodes stored bytes into objects.
type reader struct {
	codec       runtime.Codec
	transformer value.Transformer
	versioner   storage.Versioner
	memos       *Memos
	locks       [decodeLocks]sync.Mutex
	id          *readerID
	verdicts    [otherwise + 1]*memo // one each, for objects of which only the verdict is kept
}

// readerID identifies a reader in a memo. It is a separate object, because a pointer to the reader itself would keep the
// schemas of former storages in memory.
type readerID struct{ _ byte }

func newReader(codec runtime.Codec, transformer value.Transformer, memos *Memos) *reader {
	r := &reader{codec: codec, transformer: transformer, versioner: storage.APIObjectVersioner{}, memos: memos, id: &readerID{}}
	for v := range r.verdicts {
		r.verdicts[v] = &memo{owner: r.id, verdict: verdict(v)}
	}
	return r
}

// authenticated binds encrypted bytes to their key (value.Context): bytes copied to another key cannot be decrypted.
type authenticated string

// AuthenticatedData implements value.Context.
func (a authenticated) AuthenticatedData() []byte { return []byte(a) }

// decrypt undoes the transformation (decrypts). stale means that the object should be written again, for example under a
// newer encryption key. The returned bytes are read-only.
func (r *reader) decrypt(ctx context.Context, kv *raftstore.KeyValue) (data []byte, stale bool, err error) {
	data, stale, err = r.transformer.TransformFromStorage(ctx, kv.Value, authenticated(kv.Key))
	if err != nil {
		return nil, false, &corruptError{key: kv.Key, revision: kv.ModRevision, transform: true, err: err}
	}
	return data, stale, nil
}

// decodeInto decodes data into out and sets its resourceVersion.
func (r *reader) decodeInto(data []byte, out runtime.Object, rev int64) error {
	if _, err := conversion.EnforcePtr(out); err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %w", err)
	}
	if _, _, err := r.codec.Decode(data, nil, out); err != nil {
		return err
	}
	r.setVersion(out, rev)
	return nil
}

// setVersion sets the resourceVersion. For an object that has no place for one, it only logs.
func (r *reader) setVersion(obj runtime.Object, rev int64) {
	if err := r.versioner.UpdateObject(obj, uint64(rev)); err != nil {
		klog.ErrorS(err, "Failed to set the resource version of an object", "type", fmt.Sprintf("%T", obj))
	}
}

// cached returns the kept decoded form of kv, nil if none is kept.
func (r *reader) cached(kv *raftstore.KeyValue) *decoded {
	m, ok := kv.Memo().(*memo)
	if !ok || m.owner != r.id {
		return nil
	}
	d := m.ref.Value()
	if d != nil {
		d.used.Store(true)
	}
	return d
}

// cache keeps d at kv's slot for as long as Memos or a watcher holds it.
func (r *reader) cache(kv *raftstore.KeyValue, d *decoded) {
	r.setMemo(kv, d, r.verdict(kv))
	r.memos.keep(d)
}

// setMemo writes d and v to kv's slot. Unlike cache it does not hand d to Memos, which holds it already.
func (r *reader) setMemo(kv *raftstore.KeyValue, d *decoded, v verdict) {
	kv.SetMemo(&memo{owner: r.id, ref: weak.Make(d), verdict: v})
}

// decodeShared returns kv decoded, read-only, and keeps it for other watchers of the same event.
func (r *reader) decodeShared(ctx context.Context, kv *raftstore.KeyValue) (*decoded, error) {
	if d := r.cached(kv); d != nil {
		return d, nil
	}
	lock := &r.locks[uint64(kv.ModRevision)%decodeLocks]
	lock.Lock()
	defer lock.Unlock()
	if d := r.cached(kv); d != nil {
		return d, nil
	}
	d, err := r.decodeNew(ctx, kv, kv.ModRevision)
	if err != nil {
		return nil, err
	}
	r.cache(kv, d)
	return d, nil
}

// decodeNew decodes kv and gives the object the resourceVersion rev.
func (r *reader) decodeNew(ctx context.Context, kv *raftstore.KeyValue, rev int64) (*decoded, error) {
	data, _, err := r.decrypt(ctx, kv)
	if err != nil {
		return nil, err
	}
	obj, err := runtime.Decode(r.codec, data)
	if err != nil {
		return nil, &corruptError{key: kv.Key, revision: kv.ModRevision, err: err}
	}
	r.setVersion(obj, rev)
	return &decoded{obj: obj, size: len(data)}, nil
}

// fill sets out, which the caller may change, to the object in kv.
func (r *reader) fill(ctx context.Context, kv *raftstore.KeyValue, out runtime.Object) error {
	if d := r.cached(kv); d != nil && fits(d.obj, out) {
		assign(out, d.obj.DeepCopyObject())
		return nil
	}
	data, _, err := r.decrypt(ctx, kv)
	if err != nil {
		return err
	}
	return r.decode(kv.Key, data, out, kv.ModRevision)
}

// decode is decodeInto, with an error that names the unreadable key.
func (r *reader) decode(key string, data []byte, out runtime.Object, rev int64) error {
	if err := r.decodeInto(data, out, rev); err != nil {
		return &corruptError{key: key, revision: rev, err: err}
	}
	return nil
}

// withVersion returns d's object with another resourceVersion, as for the last state of a deleted object. Everything
// below the top level stays shared, except in an unstructured object, which is deep-copied because its resourceVersion
// lies deeper.
func (r *reader) withVersion(d *decoded, rev int64) *decoded {
	var obj runtime.Object
	if _, ok := d.obj.(runtime.Unstructured); ok {
		obj = d.obj.DeepCopyObject()
	} else {
		v := reflect.New(reflect.TypeOf(d.obj).Elem())
		v.Elem().Set(reflect.ValueOf(d.obj).Elem())
		obj = v.Interface().(runtime.Object)
	}
	r.setVersion(obj, rev)
	return &decoded{obj: obj, size: d.size}
}

// fits reports whether decoding into out would have given obj. An unstructured target may name the apiVersion and kind
// it wants.
func fits(obj, out runtime.Object) bool {
	if reflect.TypeOf(obj) != reflect.TypeOf(out) {
		return false
	}
	want, ok := out.(*unstructured.Unstructured)
	if !ok {
		return true
	}
	have := obj.(*unstructured.Unstructured)
	return (want.GetAPIVersion() == "" || want.GetAPIVersion() == have.GetAPIVersion()) &&
		(want.GetKind() == "" || want.GetKind() == have.GetKind())
}

// assign sets *out to *obj; both are pointers to the same type.
func assign(out, obj runtime.Object) {
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(obj).Elem())
}
