package storage

import (
	"bytes"
	"io"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	_ runtime.CacheableObject   = (*sharedObject)(nil)
	_ metav1.ObjectMetaAccessor = (*sharedObject)(nil)
)

// sharedObject is the object of a watch event, shared by several watchers. It is read-only: GetObject and all other
// accessors return copies. Each encoding is made once, and all watchers write it (runtime.CacheableObject).
type sharedObject struct {
	source    *decoded
	encodings sync.Map // runtime.Identifier → *encoding
}

// encoding is one serialization, made by the first watcher that needs it.
type encoding struct {
	once sync.Once
	raw  []byte
	err  error
}

// CacheEncode writes the encoding called id, and makes it with encode the first time. It encodes a copy, because
// encoders may change their argument (they set kind and version).
func (s *sharedObject) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	v, ok := s.encodings.Load(id)
	if !ok {
		v, _ = s.encodings.LoadOrStore(id, &encoding{})
	}
	e := v.(*encoding)
	e.once.Do(func() {
		var buf bytes.Buffer
		e.err = encode(s.GetObject(), &buf)
		e.raw = buf.Bytes()
	})
	if e.err != nil {
		return e.err
	}
	if splice, ok := w.(runtime.Splice); ok {
		splice.Splice(e.raw)
		return nil
	}
	_, err := w.Write(e.raw)
	return err
}

// GetObject returns a copy of the object, which the caller may change.
func (s *sharedObject) GetObject() runtime.Object { return s.source.obj.DeepCopyObject() }

// DeepCopyObject returns a copy of the wrapped object, not wrapped.
func (s *sharedObject) DeepCopyObject() runtime.Object { return s.GetObject() }

// GetObjectKind returns a copy of the object's kind.
func (s *sharedObject) GetObjectKind() schema.ObjectKind {
	gvk := s.source.obj.GetObjectKind().GroupVersionKind()
	return &metav1.TypeMeta{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind}
}

// GetObjectMeta returns a copy of the metadata for meta.Accessor, nil for an object without metadata. A caller that
// wants to change the object has to use GetObject.
func (s *sharedObject) GetObjectMeta() metav1.Object {
	accessor, err := meta.Accessor(s.source.obj)
	if err != nil {
		return nil
	}
	if m, ok := accessor.(*metav1.ObjectMeta); ok {
		return m.DeepCopy()
	}
	return meta.AsPartialObjectMetadata(accessor).ObjectMeta.DeepCopy()
}
