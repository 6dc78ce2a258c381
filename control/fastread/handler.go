package fastread

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/audit"
	apiaudit "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	storeerr "k8s.io/apiserver/pkg/storage/errors"

	"github.com/balsahq/balsa/control/storage"
	"github.com/balsahq/balsa/fault"
)

// Handler answers reads from stored bytes, and leaves other requests to the next handler.
type Handler struct {
	kinds      map[schema.GroupVersionResource]*kind
	renderings *renderings
	frames     frames
	serializer runtime.NegotiatedSerializer
}

// New returns a handler for those kinds that can be answered from stored bytes. It keeps at most budget bytes of JSON.
// serializer encodes errors.
func New(kinds []Kind, budget int, serializer runtime.NegotiatedSerializer) *Handler {
	h := &Handler{kinds: map[schema.GroupVersionResource]*kind{}, renderings: newRenderings(budget), serializer: serializer}
	for _, k := range kinds {
		if in, ok := newKind(k); ok {
			in.serializer = serializer
			h.kinds[k.Resource] = in
		}
	}
	return h
}

// Close drops what is kept. Requests may still come.
func (h *Handler) Close() { h.renderings.close() }

// Before returns a handler that asks h first and next for the rest. It has to run after authorization.
func (h *Handler) Before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || !h.serve(w, r) && !h.forward(w, r, next) {
			next.ServeHTTP(w, r)
		}
	})
}

// serve answers r, or returns false and has written nothing.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request) bool {
	fault.Point("control/fastread")
	ctx := r.Context()
	info, ok := request.RequestInfoFrom(ctx)
	if !ok || !info.IsResourceRequest || info.Subresource != "" || info.APIPrefix == "" {
		return false
	}
	k := h.kinds[schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}]
	if k == nil || parameters[info.Verb] == nil || r.Header.Get("Upgrade") != "" || wantsObjects(ctx) {
		return false
	}
	protobuf, ok := encodingOf(r)
	if !ok || !protobuf && !k.json {
		return false
	}
	scope, ok := scopeOf(info, k.Store.NamespaceScoped(), r.URL.RawQuery)
	if !ok {
		return false
	}
	began := time.Now()
	size, code := 0, http.StatusOK
	if info.Verb == "watch" {
		size, ok = h.watch(w, r, &scope, &watchClient{k: k, protobuf: protobuf})
	} else {
		size, code, ok = h.read(w, r, &scope, &answer{h: h, k: k, protobuf: protobuf, oneObject: info.Verb == "get"})
	}
	if !ok {
		return false
	}
	breadth := "cluster"
	switch {
	case info.Verb == "get":
		breadth = "resource"
	case info.Namespace != "":
		breadth = "namespace"
	}
	metrics.MonitorRequest(r, map[string]string{"get": "GET", "list": "LIST", "watch": "LIST"}[info.Verb], info.APIGroup, info.APIVersion, info.Resource, "", breadth,
		metrics.APIServerComponent, false, "", code, size, time.Since(began))
	return true
}

// wantsObjects reports whether the audit log records response bodies, for which it needs decoded objects.
func wantsObjects(ctx context.Context) bool {
	a := apiaudit.AuditContextFrom(ctx)
	return a != nil && a.Enabled() && a.GetEventLevel() == audit.LevelRequestResponse
}

// read answers a GET or a list.
func (h *Handler) read(w http.ResponseWriter, r *http.Request, scope *scope, a *answer) (size, code int, ok bool) {
	a.items, a.wanted = itemSlices.get(), wantedSlices.get()
	a.objects, a.texts = byteSlices.get(), byteSlices.get()
	defer a.release()
	key, err := scope.key(r.Context(), a.k.Store)
	if err != nil {
		return 0, 0, false
	}
	if a.oneObject {
		ok = a.get(r.Context(), key, scope)
	} else {
		ok = a.list(r.Context(), key, scope)
	}
	switch {
	case !ok:
		return 0, 0, false
	case a.failed != nil:
		return 0, responsewriters.ErrorNegotiated(a.failed, h.serializer, a.k.Resource.GroupVersion(), w, r), true
	}
	return a.write(w, r), http.StatusOK, true
}

// answer is one answer while it is being made.
type answer struct {
	h         *Handler
	k         *kind
	protobuf  bool
	oneObject bool // one object, not a list

	head    []byte // before the items
	tail    []byte // after the items
	items   []item // protobuf
	wanted  []rendering
	objects [][]byte
	texts   [][]byte       // JSON of wanted, in the same order
	stored  []storage.Text // JSON of custom resources, as stored

	failed error // the store's error, as a status; k8s.io/apiserver is not asked to repeat a slow failure
}

// release returns the buffers for the next answer.
func (a *answer) release() {
	itemSlices.put(a.items)
	wantedSlices.put(a.wanted)
	byteSlices.put(a.objects)
	byteSlices.put(a.texts)
}

// contentType returns the Content-Type header.
func (a *answer) contentType() string {
	if a.protobuf {
		return runtime.ContentTypeProtobuf
	}
	return runtime.ContentTypeJSON
}

// get reads one object. It returns false if k8s.io/apiserver has to answer.
func (a *answer) get(ctx context.Context, key string, scope *scope) bool {
	o, ok, err := a.k.bytes.Get(ctx, key, scope.options.ResourceVersion)
	if err != nil {
		a.failed = storeerr.InterpretGetError(err, a.k.Resource.GroupResource(), scope.name)
		return true
	}
	if !ok {
		return false
	}
	object, ok := a.k.object(o.Data)
	if !ok {
		return false
	}
	if a.protobuf {
		it, err := parse(object, o.Revision, nil)
		if err != nil {
			return false
		}
		a.items = append(a.items, it)
		a.head = openEnvelope(nil, a.k.typeMeta, it.size())
		a.tail = closeEnvelope(nil)
		return true
	}
	a.wanted = append(a.wanted, rendering{key: o.Key, revision: o.Revision})
	a.objects = append(a.objects, object)
	if !a.render() || len(a.texts[0]) < 2 {
		return false
	}
	a.head = append(append([]byte{'{'}, a.k.jsonType...), ',')
	a.texts[0], a.tail = a.texts[0][1:], []byte{'\n'}
	return true
}

// list reads a list. It returns false if k8s.io/apiserver has to answer.
func (a *answer) list(ctx context.Context, key string, scope *scope) bool {
	opts, sound := scope.stored(), true
	chosen := storage.NewLabelMatcher(opts.Predicate.Label)
	var see func(k, v []byte)
	if chosen != nil {
		see = chosen.Add
	}
	page, err := a.k.bytes.List(ctx, key, opts, func(o storage.Stored) bool {
		object, ok := a.k.object(o.Data)
		if !ok || !sound {
			sound = false
			return true
		}
		if chosen != nil {
			chosen.Reset()
		}
		it, err := parse(object, o.Revision, see)
		if err != nil {
			sound = false
			return true
		}
		if chosen != nil && !chosen.Match() {
			return false
		}
		if a.protobuf {
			a.items = append(a.items, it)
		} else {
			a.wanted = append(a.wanted, rendering{key: o.Key, revision: o.Revision})
			a.objects = append(a.objects, object)
		}
		return true
	})
	if err != nil {
		a.failed = storeerr.InterpretListError(err, a.k.Resource.GroupResource())
		return true
	}
	if !sound {
		return false
	}
	meta := metav1.ListMeta{ResourceVersion: strconv.FormatUint(page.Revision, 10), Continue: page.Continue, RemainingItemCount: page.Remaining}
	if a.protobuf {
		return a.frame(&meta)
	}
	if !a.render() {
		return false
	}
	head, err := json.Marshal(&meta)
	if err != nil {
		return false
	}
	a.head = append(append([]byte{'{'}, a.k.jsonList...), `,"metadata":`...)
	a.head = append(append(a.head, head...), `,"items":[`...)
	a.tail = []byte("]}\n")
	return true
}

// frame makes the bytes around the items of a protobuf list.
func (a *answer) frame(meta *metav1.ListMeta) bool {
	m, err := meta.Marshal()
	if err != nil {
		return false
	}
	size := 1 + uvarintSize(len(m)) + len(m)
	for i := range a.items {
		n := a.items[i].size()
		size += 1 + uvarintSize(n) + n
	}
	a.head = openEnvelope(nil, a.k.listMeta, size)
	a.head = append(appendHead(a.head, listMeta, len(m)), m...)
	a.tail = closeEnvelope(nil)
	return true
}

// render fills texts with the JSON of the wanted objects.
func (a *answer) render() bool {
	a.texts = slices.Grow(a.texts[:0], len(a.wanted))[:len(a.wanted)]
	clear(a.texts)
	if a.h.renderings.lookup(a.wanted, a.texts) == 0 {
		return true
	}
	for i := range a.wanted {
		if a.texts[i] != nil {
			continue
		}
		w := &a.wanted[i]
		obj, err := a.k.decode(a.objects[i], strconv.FormatInt(w.revision, 10))
		if err != nil {
			return false
		}
		if a.texts[i], err = json.Marshal(obj); err != nil {
			return false
		}
		a.h.renderings.add(w.key, w.revision, a.texts[i])
	}
	return true
}
