package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/balsahq/balsa/raftstore"
)

// maxCorrupt is the number of unreadable objects that the error of one list names.
const maxCorrupt = 100

// GetList implements storage.Interface. Items share everything below their top level with other readers: the caller may
// set fields of an item, but must not change the values that these point to.
func (s *store) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	prefix, err := s.key(key, opts.Recursive)
	if err != nil {
		return err
	}
	began := time.Now()
	defer func() { s.took("list", began, nil) }()
	items, err := meta.GetItemsPtr(listObj)
	if err != nil {
		return err
	}
	slice, err := conversion.EnforcePtr(items)
	if err != nil || slice.Kind() != reflect.Slice {
		return fmt.Errorf("need ptr to slice: %v", err)
	}
	view, start, err := s.listView(ctx, prefix, opts)
	if err != nil {
		return err
	}
	p := &page{s: s, ctx: ctx, opts: opts, items: slice, newItem: newItem(listObj, slice), keep: s.Memos.listShare()}
	p.model = p.newItem()
	if p.offer = offered(ctx, listObj, opts); p.offer != nil {
		p.chosen = NewLabelMatcher(opts.Predicate.Label)
	}
	if err := p.fill(view, prefix, start); err != nil {
		return err
	}
	total := int64(0)
	if p.more && opts.Predicate.Empty() {
		total = int64(view.Count(start, raftstore.PrefixEnd(prefix)))
	}
	token, remaining, err := storage.PrepareContinueToken(p.last, prefix, view.Revision(), total, p.more, opts)
	if err != nil {
		return err
	}
	if err := s.versioner.UpdateList(listObj, uint64(view.Revision()), token, remaining); err != nil {
		return err
	}
	opts.Predicate.SetShardInfoOnList(listObj)
	if p.offer != nil {
		p.offer.Taken, p.offer.Texts = true, p.texts
	}
	return nil
}

// listView returns the state to list and the key to start from.
func (s *store) listView(ctx context.Context, prefix string, opts storage.ListOptions) (*raftstore.View, string, error) {
	rev, start, err := storage.ValidateListOptions(prefix, s.versioner, opts)
	if err != nil {
		return nil, "", err
	}
	resourceVersion := opts.ResourceVersion
	if start == "" {
		start = prefix
	} else if rev == 0 {
		resourceVersion = "" // the token of an inconsistent list: continue with the newest state
	}
	if rev == 0 {
		v, err := s.view(ctx, resourceVersion)
		return v, start, err
	}
	v, err := s.viewAt(ctx, rev)
	if errors.Is(err, raftstore.ErrCompacted) {
		return nil, "", expiredList(start, prefix, opts)
	}
	return v, start, storeError(err)
}

// expiredList is the 410 error of a list whose revision is compacted. If the list was a continuation, the error offers
// a token that continues with the newest state.
func expiredList(start, prefix string, opts storage.ListOptions) error {
	if opts.Predicate.Continue == "" {
		return apierrors.NewResourceExpired(listExpired)
	}
	token, err := storage.EncodeContinue(start, prefix, -1)
	if err != nil {
		return apierrors.NewResourceExpired(continueExpired + ".")
	}
	expired := apierrors.NewResourceExpired(continueInconsistent)
	expired.ErrStatus.ListMeta.Continue = token
	return expired
}

// newItem returns a constructor of the list's elements. Elements of an unstructured list get the list's apiVersion,
// which tells the codec which version to decode to.
func newItem(listObj runtime.Object, slice reflect.Value) func() runtime.Object {
	if u, ok := listObj.(*unstructured.UnstructuredList); ok && u.GetAPIVersion() != "" {
		version := u.GetAPIVersion()
		return func() runtime.Object {
			return &unstructured.Unstructured{Object: map[string]any{"apiVersion": version}}
		}
	}
	elem := slice.Type().Elem()
	return func() runtime.Object { return reflect.New(elem).Interface().(runtime.Object) }
}

// page is one list while it is being filled.
type page struct {
	s       *store
	ctx     context.Context
	opts    storage.ListOptions
	items   reflect.Value // the slice to append to
	newItem func() runtime.Object
	model   runtime.Object // an object from newItem, to compare types with
	keep    int            // encoded bytes that this list may still add to Memos

	offer  *Verbatim // nil: the items are objects
	texts  []Text
	chosen *LabelMatcher // nil: every object is selected

	last    string // the last key visited
	more    bool   // there are keys after last
	corrupt []error
	err     error
}

// fill appends the selected objects of [start, end of prefix), up to the limit.
func (p *page) fill(view *raftstore.View, prefix, start string) error {
	if !p.opts.Recursive {
		if kv := view.Get(prefix); kv != nil {
			p.add(kv)
		}
	} else {
		p.reserve(view, prefix, start)
		view.Ascend(start, raftstore.PrefixEnd(prefix), p.add)
	}
	if p.err != nil {
		return p.err
	}
	if len(p.corrupt) > 0 {
		return corruptList(p.s.GroupResource, p.corrupt)
	}
	if p.items.IsNil() {
		p.items.Set(reflect.MakeSlice(p.items.Type(), 0, 0))
	}
	return nil
}

// reserve allocates room for the whole page where its length is known, so that a long list is not copied while it
// grows.
func (p *page) reserve(view *raftstore.View, prefix, start string) {
	if !p.opts.Predicate.Empty() {
		return
	}
	n, limit := 0, int(p.opts.Predicate.Limit)
	view.Ascend(start, raftstore.PrefixEnd(prefix), func(*raftstore.KeyValue) bool {
		n++
		return n != limit
	})
	switch {
	case p.offer != nil:
		p.texts = make([]Text, 0, n)
	case n > p.items.Cap():
		p.items.Set(reflect.MakeSlice(p.items.Type(), 0, n))
	}
}

// add visits one object and appends it if it is selected; false ends the walk.
func (p *page) add(kv *raftstore.KeyValue) bool {
	if limit := p.opts.Predicate.Limit; limit > 0 && int64(p.items.Len()+len(p.texts)) >= limit {
		p.more = true
		return false
	}
	p.last = kv.Key
	if p.ctx.Err() != nil {
		p.err = storage.NewTimeoutError(kv.Key, "request did not complete within requested timeout")
		return false
	}
	if p.offer != nil {
		return p.addText(kv)
	}
	obj, shared, err := p.object(kv)
	if err != nil {
		return p.unreadable(kv.Key, err)
	}
	// An object whose attributes cannot be read matches nothing.
	if ok, err := p.opts.Predicate.Matches(obj); err == nil && ok {
		if shared {
			obj = shallowCopy(obj)
		}
		n := p.items.Len()
		if n == p.items.Cap() {
			p.items.Grow(1)
		}
		p.items.SetLen(n + 1)
		p.items.Index(n).Set(reflect.ValueOf(obj).Elem())
	}
	return true
}

// shallowCopy returns a shallow copy of a shared object, whose top-level fields the caller may set. In an unstructured
// object the top level is two maps: the object and its metadata. Everything below stays shared.
func shallowCopy(obj runtime.Object) runtime.Object {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		if _, ok := obj.(runtime.Unstructured); ok {
			return obj.DeepCopyObject()
		}
		return obj // the caller copies the struct into the list
	}
	top := maps.Clone(u.Object)
	if metadata, ok := top["metadata"].(map[string]any); ok {
		top["metadata"] = maps.Clone(metadata)
	}
	return &unstructured.Unstructured{Object: top}
}

// object returns kv as an object of the list's element type, and whether other readers hold it too.
func (p *page) object(kv *raftstore.KeyValue) (obj runtime.Object, shared bool, err error) {
	if d := p.s.reader.cached(kv); d != nil && fits(d.obj, p.model) {
		return d.obj, true, nil
	}
	data, _, err := p.s.reader.decrypt(p.ctx, kv)
	if err != nil {
		return nil, false, err
	}
	item := p.newItem()
	if err := p.s.reader.decode(kv.Key, data, item, kv.ModRevision); err != nil {
		return nil, false, err
	}
	if p.keep < len(data) || !p.s.isMemoryVersion(item) {
		return item, false, nil
	}
	p.keep -= len(data)
	p.s.reader.cache(kv, &decoded{obj: item, size: len(data)})
	return item, true, nil
}

// isMemoryVersion reports whether obj has the type that decoding without a target gives, so that other readers can use
// it too.
func (s *store) isMemoryVersion(obj runtime.Object) bool {
	if _, ok := obj.(runtime.Unstructured); ok || s.NewFunc == nil {
		return false
	}
	return reflect.TypeOf(obj) == reflect.TypeOf(s.NewFunc())
}

// unreadable records an unreadable object: the list fails, or, where corrupt objects may be deleted unread, the error
// names this object beside others. It returns whether the walk continues.
func (p *page) unreadable(key string, err error) bool {
	var corrupt *corruptError
	if !unsafeDeletion() || !errors.As(err, &corrupt) {
		if corrupt = nil; errors.As(err, &corrupt) && corrupt.transform {
			err = fmt.Errorf("unable to transform key %q: %w", key, err)
			p.err = storage.NewInternalError(err)
			return false
		}
		p.err = readError(err)
		return false
	}
	p.corrupt = append(p.corrupt, storage.NewCorruptObjError(key, corrupt))
	return len(p.corrupt) <= maxCorrupt
}

// corruptList is the error of a list in which some objects cannot be read. It names them, so that an administrator can
// delete them unread.
func corruptList(resource schema.GroupResource, errs []error) error {
	var causes []metav1.StatusCause
	for i, err := range errs {
		if i == maxCorrupt {
			causes = append(causes, metav1.StatusCause{
				Type: metav1.CauseTypeTooMany, Message: "too many errors, the list is truncated"})
			break
		}
		var named *storage.StorageError
		if errors.As(err, &named) {
			causes = append(causes, metav1.StatusCause{
				Type: metav1.CauseTypeUnexpectedServerResponse, Field: named.Key, Message: strings.TrimSpace(err.Error())})
		}
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonStoreReadError,
		Message: fmt.Sprintf("failed to read one or more %s from the storage", resource),
		Details: &metav1.StatusDetails{Group: resource.Group, Kind: resource.Resource, Name: "list", Causes: causes},
	}}
}

// sharded reports whether the predicate selects by shard. SelectionPredicate.Empty does not say so.
func sharded(p storage.SelectionPredicate) bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) &&
		p.ShardSelector != nil && !p.ShardSelector.Empty()
}
