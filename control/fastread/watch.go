package fastread

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	compbasemetrics "k8s.io/component-base/metrics"

	"github.com/balsahq/balsa/control/storage"
	"github.com/balsahq/balsa/fault"
)

// minWatch is how long a watch without timeoutSeconds lasts: a random time from minWatch to twice that
// (kube-apiserver's --min-request-timeout).
const minWatch = 30 * time.Minute

// watchDuration returns the duration of a watch.
func (s *scope) watchDuration() time.Duration {
	if seconds := s.options.TimeoutSeconds; seconds != nil && *seconds > 0 {
		return time.Duration(*seconds) * time.Second
	}
	return time.Duration(float64(minWatch) * (rand.Float64() + 1))
}

// watch serves a watch of a.k until it ends, in a.protobuf's encoding. It returns false, and has written nothing, if
// k8s.io/apiserver has to serve it.
func (h *Handler) watch(w http.ResponseWriter, r *http.Request, scope *scope, a *watchClient) (size int, ok bool) {
	fault.Point("control/fastread watch")
	k, gvr := a.k, a.k.Resource
	flusher, ok := w.(http.Flusher)
	if !ok {
		return 0, false
	}
	ctx, cancel := context.WithTimeout(r.Context(), scope.watchDuration())
	defer cancel()
	key, err := scope.key(ctx, k.Store)
	if err != nil {
		return 0, false
	}
	opts := scope.stored()
	if a.encode, err = k.events(a.protobuf); err != nil {
		return 0, false
	}
	source, err := k.bytes.Watch(ctx, key, opts)
	if err != nil {
		return 0, false
	}
	a.one, a.ctx, a.h, a.w, a.flusher = answer{h: h, k: k}, ctx, h, w, flusher
	// Requests are not traced. With the request's context, the metrics would look for a trace at each event.
	a.count = metrics.WatchEvents.WithContext(context.Background()).WithLabelValues(gvr.Group, gvr.Version, gvr.Resource)
	a.sizes = metrics.WatchEventsSizes.WithContext(context.Background()).WithLabelValues(gvr.Group, gvr.Version, gvr.Resource)
	a.scope = metrics.CleanListScope(request.WithNamespace(ctx, scope.namespace), &scope.options)
	if a.chosen = storage.NewLabelMatcher(opts.Predicate.Label); a.chosen != nil {
		a.selector = opts.Predicate.Label
	}
	info, _ := request.RequestInfoFrom(ctx)
	metrics.RecordLongRunning(r, info, metrics.APIServerComponent, func() { a.serve(source) })
	return a.sent, true
}

// watchClient is one watching client. It implements storage.Listener.
type watchClient struct {
	ctx      context.Context
	h        *Handler
	k        *kind
	w        http.ResponseWriter
	flusher  http.Flusher
	protobuf bool
	encode   eventEncoder
	selector labels.Selector       // nil selects everything
	chosen   *storage.LabelMatcher // evaluates selector
	count    compbasemetrics.CounterMetric
	sizes    compbasemetrics.ObserverMetric
	scope    string
	sent     int // bytes

	one     answer  // the JSON of one initial object at a time
	pending *[]byte // initial events that wait until there are enough to be written; nil after the start
}

var _ storage.Listener = (*watchClient)(nil)

// serve serves the watch until it ends.
func (a *watchClient) serve(source *storage.BytesWatch) {
	a.h.frames.join()
	defer a.h.frames.leave()
	defer a.releaseBuffer()
	header := a.w.Header()
	header.Set("Content-Type", runtime.ContentTypeJSON)
	if a.protobuf {
		header.Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	}
	header.Set("Transfer-Encoding", "chunked")
	a.w.WriteHeader(http.StatusOK)
	a.flusher.Flush()
	err := source.Run(a)
	if err == nil || a.ctx.Err() != nil {
		return
	}
	if raw, failed := a.encode(watch.Error, storage.WatchStatus(err)); failed == nil && a.write(raw) == nil {
		_ = a.CaughtUp() // a client that has left gets no error
	}
}

// write sends an event after the pending ones.
func (a *watchClient) write(raw []byte) error {
	a.count.Inc()
	a.sizes.Observe(float64(len(raw)))
	if err := a.flushPending(); err != nil {
		return err
	}
	n, err := a.w.Write(raw)
	a.sent += n
	return err
}

// flushPending sends the pending events.
func (a *watchClient) flushPending() error {
	if a.pending == nil || len(*a.pending) == 0 {
		return nil
	}
	n, err := a.w.Write(*a.pending)
	a.sent += n
	*a.pending = (*a.pending)[:0]
	return err
}

// releaseBuffer returns the buffer of the initial events.
func (a *watchClient) releaseBuffer() {
	if a.pending != nil && cap(*a.pending) <= 4*writeSize {
		*a.pending = (*a.pending)[:0]
		pieces.Put(a.pending)
	}
	a.pending = nil
}

// CaughtUp implements storage.Listener.
func (a *watchClient) CaughtUp() error {
	if err := a.flushPending(); err != nil {
		return err
	}
	a.releaseBuffer()
	a.flusher.Flush()
	return nil
}

// Bookmark implements storage.Listener.
func (a *watchClient) Bookmark(obj runtime.Object, initial bool) error {
	raw, err := a.encode(watch.Bookmark, obj)
	if err != nil {
		return err
	}
	if err := a.write(raw); err != nil || !initial {
		return err
	}
	if received, ok := request.ReceivedTimestampFrom(a.ctx); ok {
		metrics.RecordWatchListLatency(a.ctx, a.k.Resource, a.scope, time.Since(received))
	}
	return nil
}

// Existing implements storage.Listener.
func (a *watchClient) Existing(o storage.Object) error {
	data, err := o.Data(a.ctx)
	if err != nil {
		return err
	}
	if a.pending == nil {
		a.pending = pieces.Get().(*[]byte)
		*a.pending = (*a.pending)[:0]
	}
	was := len(*a.pending)
	*a.pending, err = a.existing(*a.pending, o, data)
	if n := len(*a.pending) - was; err == nil && n > 0 {
		a.count.Inc()
		a.sizes.Observe(float64(n))
	}
	if err == nil && len(*a.pending) >= writeSize {
		err = a.flushPending()
	}
	return err
}

// existing appends the event of an initial object, if it is selected.
func (a *watchClient) existing(b []byte, o storage.Object, data []byte) ([]byte, error) {
	object, it, selected, ok := a.inspect(o, data)
	switch {
	case !ok:
		raw, selected, err := a.decoded(watch.Added, o)
		if err != nil || !selected {
			return b, err
		}
		return append(b, raw...), nil
	case !selected:
		return b, nil
	case a.protobuf:
		return protobufEvent(b, watch.Added, a.k.typeMeta, &it), nil
	}
	r := &a.one
	r.wanted, r.objects = append(r.wanted[:0], rendering{o.Key(), o.Revision}), append(r.objects[:0], object)
	if !r.render() {
		return b, errShape
	}
	return jsonEvent(b, watch.Added, a.k.jsonType, r.texts[0]), nil
}

// inspect parses an object's bytes and reports whether it is selected; ok is false if the object has to be decoded for
// that.
func (a *watchClient) inspect(o storage.Object, data []byte) (object []byte, it item, selected, ok bool) {
	object, ok = a.k.object(data)
	if !ok {
		return nil, it, false, false
	}
	if a.chosen == nil {
		it, err := parse(object, o.Revision, nil)
		return object, it, true, err == nil
	}
	a.chosen.Reset()
	it, err := parse(object, o.Revision, a.chosen.Add)
	return object, it, a.chosen.Match(), err == nil
}

// selects reports whether an object is selected.
func (a *watchClient) selects(o storage.Object) (bool, error) {
	if a.selector == nil {
		return true, nil
	}
	data, err := o.Data(a.ctx)
	if err != nil {
		return false, err
	}
	if _, _, selected, ok := a.inspect(o, data); ok {
		return selected, nil
	}
	_, selected, err := a.decoded(watch.Modified, o)
	return selected, err
}

// decoded encodes the event of an object as k8s.io/apiserver does. It is for objects whose stored bytes cannot be sent.
func (a *watchClient) decoded(event watch.EventType, o storage.Object) (raw []byte, selected bool, err error) {
	obj, err := o.Decoded(a.ctx)
	if err != nil {
		return nil, false, err
	}
	if a.selector != nil {
		m, ok := obj.(metav1.ObjectMetaAccessor)
		if !ok || m.GetObjectMeta() == nil {
			return nil, false, fmt.Errorf("%w: %s has no metadata", errShape, o.Key())
		}
		if !a.selector.Matches(labels.Set(m.GetObjectMeta().GetLabels())) {
			return nil, false, nil
		}
	}
	raw, err = a.encode(event, obj)
	return raw, true, err
}

// Changed implements storage.Listener. The event depends on whether the object is selected now, and was before.
func (a *watchClient) Changed(c storage.Change) (err error) {
	is, was := false, false
	if c.Now.Exists() {
		if is, err = a.selects(c.Now); err != nil {
			return err
		}
	}
	switch {
	case c.Created:
	case a.selector == nil:
		was = true
	case c.Before.Exists():
		if was, err = a.selects(c.Before); err != nil {
			return err
		}
	}
	switch {
	case is && was:
		return a.sendShared(watch.Modified, c, c.Now)
	case is:
		return a.sendShared(watch.Added, c, c.Now)
	case was:
		return a.sendShared(watch.Deleted, c, c.Before)
	}
	return nil
}

// sendShared sends an event that is encoded once for all watchers.
func (a *watchClient) sendShared(event watch.EventType, c storage.Change, o storage.Object) error {
	raw, err := a.h.frames.get(frameKey{a.k, c.Key, c.Revision, event, a.protobuf}, func() ([]byte, error) { return a.frame(event, o) })
	if err != nil {
		return err
	}
	return a.write(raw)
}

// frame encodes an event. Other watchers get it too, so this client's context does not end the encoding.
func (a *watchClient) frame(event watch.EventType, o storage.Object) ([]byte, error) {
	data, err := o.Data(context.WithoutCancel(a.ctx))
	if err != nil {
		return nil, err
	}
	if object, ok := a.k.object(data); ok {
		if it, err := parse(object, o.Revision, nil); err == nil && a.protobuf {
			return protobufEvent(make([]byte, 0, it.size()+256), event, a.k.typeMeta, &it), nil
		}
		if !a.protobuf {
			obj, err := a.k.decode(object, strconv.FormatInt(o.Revision, 10))
			if err != nil {
				return nil, err
			}
			text, err := json.Marshal(obj)
			if err != nil {
				return nil, err
			}
			return jsonEvent(make([]byte, 0, len(text)+256), event, a.k.jsonType, text), nil
		}
	}
	obj, err := o.Decoded(context.WithoutCancel(a.ctx))
	if err != nil {
		return nil, err
	}
	return a.encode(event, obj)
}

// eventEncoder encodes an event as k8s.io/apiserver does.
type eventEncoder func(event watch.EventType, obj runtime.Object) ([]byte, error)

// events returns the event encoder for JSON or protobuf.
func (k *kind) events(protobuf bool) (eventEncoder, error) {
	mediaType := runtime.ContentTypeJSON
	if protobuf {
		mediaType = runtime.ContentTypeProtobuf
	}
	info, ok := runtime.SerializerInfoForMediaType(k.serializer.SupportedMediaTypes(), mediaType)
	if !ok || info.StreamSerializer == nil {
		return nil, fmt.Errorf("no events as %s", mediaType)
	}
	version := k.Resource.GroupVersion()
	return func(event watch.EventType, obj runtime.Object) ([]byte, error) {
		var inner, outer bytes.Buffer
		if err := k.serializer.EncoderForVersion(info.Serializer, version).Encode(obj, &inner); err != nil {
			return nil, err
		}
		if protobuf {
			outer.Write([]byte{0, 0, 0, 0})
		}
		e := &metav1.WatchEvent{Type: string(event), Object: runtime.RawExtension{Raw: inner.Bytes()}}
		if err := k.serializer.EncoderForVersion(info.StreamSerializer.Serializer, version).Encode(e, &outer); err != nil {
			return nil, err
		}
		raw := outer.Bytes()
		if protobuf {
			binary.BigEndian.PutUint32(raw, uint32(len(raw)-4))
		}
		return raw, nil
	}, nil
}
