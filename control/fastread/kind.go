package fastread

import (
	"bytes"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/deprecation"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"github.com/balsahq/balsa/control/storage"
)

// Kind is a kind in one served version.
type Kind struct {
	Resource schema.GroupVersionResource
	Store    *genericregistry.Store
	// Scheme makes objects of Resource's version.
	Scheme *runtime.Scheme
	// Kind is the kind's name.
	Kind schema.GroupVersionKind
}

// kind is a Kind that can be answered from stored bytes.
type kind struct {
	Kind
	bytes    storage.Bytes
	typeMeta []byte // of one object, as a protobuf message
	opening  []byte // start of a stored object, up to its own message
	listMeta []byte // of a list
	jsonType string // `"kind":…,"apiVersion":…`, of one object
	jsonList string
	elem     reflect.Type
	json     bool // JSON can be made from the stored message

	serializer runtime.NegotiatedSerializer // for errors, bookmarks and objects stored in another version
}

// latest is a release number after every deprecation.
const latest = 1 << 20

// message is implemented by the types of k8s.io/api.
type message interface{ Unmarshal([]byte) error }

// lateDefaults are kinds that get more defaults when they are decoded than when they were created, so that their stored
// bytes are not what a client has to see. A Job takes its labels from its template, which gets its own labels only at
// creation.
var lateDefaults = map[schema.GroupResource]bool{{Group: "batch", Resource: "jobs"}: true}

// newKind reports whether objects of k can be answered from stored bytes. Whether an object is stored in k's version is
// checked for each object.
func newKind(k Kind) (*kind, bool) {
	stored, ok := storage.BytesOf(k.Store.Storage.Storage)
	if !ok || k.Store.Decorator != nil || lateDefaults[k.Resource.GroupResource()] {
		return nil, false // clients do not see the stored bytes
	}
	obj, err := k.Scheme.New(k.Kind)
	if err != nil || deprecation.IsDeprecated(obj, latest, latest) {
		return nil, false // k8s.io/apiserver adds warnings
	}
	if _, ok := obj.(message); !ok {
		return nil, false
	}
	out := &kind{Kind: k, bytes: stored, elem: reflect.TypeOf(obj).Elem()}
	out.json = !hasNestedTypes(out.elem, map[reflect.Type]bool{}, true)
	version, name := k.Kind.GroupVersion().String(), k.Kind.Kind
	out.typeMeta, out.jsonType = typeOf(version, name)
	out.opening = openObject(nil, out.typeMeta)
	out.listMeta, out.jsonList = typeOf(version, name+"List")
	return out, true
}

// hasNestedTypes reports whether an object contains other objects with their kind and apiVersion in JSON, as a
// StatefulSet contains claims. Protobuf does not keep these.
func hasNestedTypes(t reflect.Type, seen map[reflect.Type]bool, top bool) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return hasNestedTypes(t.Elem(), seen, false)
	case reflect.Struct:
	default:
		return false
	}
	if seen[t] {
		return false
	}
	seen[t] = true
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Type == reflect.TypeFor[metav1.TypeMeta]() {
			if !top {
				return true
			}
			continue
		}
		if hasNestedTypes(f.Type, seen, false) {
			return true
		}
	}
	return false
}

func typeOf(version, name string) (protobuf []byte, json string) {
	t := runtime.TypeMeta{APIVersion: version, Kind: name}
	protobuf, err := t.Marshal()
	if err != nil {
		panic(err) // both are strings, which always encode
	}
	return protobuf, fmt.Sprintf(`"kind":%q,"apiVersion":%q`, name, version)
}

// object returns the own message of a stored object; ok is false if it is of another kind or version.
func (k *kind) object(data []byte) ([]byte, bool) {
	if rest, ok := bytes.CutPrefix(data, k.opening); ok {
		if f, err := next(rest, 0); err == nil && f.number == unknownRaw && f.kind == delimited && string(rest[f.end:]) == closing {
			return rest[f.body:f.end], true
		}
	}
	typeMeta, object, err := envelope(data)
	return object, err == nil && string(typeMeta) == string(k.typeMeta)
}

// decode decodes a stored message into an object with the resourceVersion version.
func (k *kind) decode(object []byte, version string) (metav1.Object, error) {
	obj := reflect.New(k.elem).Interface()
	if err := obj.(message).Unmarshal(object); err != nil {
		return nil, err
	}
	o, ok := obj.(metav1.Object)
	if !ok {
		return nil, errShape
	}
	o.SetResourceVersion(version)
	return o, nil
}
