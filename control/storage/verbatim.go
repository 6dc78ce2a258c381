package storage

import (
	"bytes"
	"context"
	"errors"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/balsahq/balsa/raftstore"
)

// Verbatim is an offer, in the context of a Get or a GetList, to take the result as JSON texts. A storage of
// unstructured objects may accept it: it then returns the object, or the list, without its content and puts the texts
// into the offer.
//
// A client does not see the stored bytes of such an object, but the result of decoding them: the codec removes fields
// that the schema does not know, adds defaults, and converts to the requested version. Mostly the result is the stored
// JSON, apart from the resourceVersion. A storage finds this out once for each version of an object, by decoding and
// comparing, and keeps the verdict beside the object. A changed schema has a new storage, which compares again.
type Verbatim struct {
	// Taken: the storage has accepted the offer.
	Taken bool
	// Texts are the objects in list order; after a Get there is one.
	Texts []Text
}

var errNotUnstructured = errors.New("storage: an unstructured list has an item that is not unstructured")

type verbatimKey struct{}

// WithVerbatim returns a context that carries the offer v.
func WithVerbatim(ctx context.Context, v *Verbatim) context.Context {
	return context.WithValue(ctx, verbatimKey{}, v)
}

func verbatimFrom(ctx context.Context) *Verbatim {
	v, _ := ctx.Value(verbatimKey{}).(*Verbatim)
	return v
}

// Text is the JSON of one object, as encoding/json writes it.
type Text struct {
	data     []byte // read-only
	at       int    // offset at which to insert the resourceVersion; 0 if data has it
	revision int64
}

const versionField = `"resourceVersion":"`

// Append appends the text to b.
func (t Text) Append(b []byte) []byte {
	b = append(b, t.data[:t.at]...)
	if t.at > 0 {
		b = append(b, versionField...)
		b = strconv.AppendInt(b, t.revision, 10)
		b = append(b, '"', ',')
	}
	return append(b, t.data[t.at:]...)
}

// Len returns the length of the text in bytes.
func (t Text) Len() int {
	if t.at == 0 {
		return len(t.data)
	}
	var digits [20]byte
	return len(t.data) + len(versionField) + len(strconv.AppendInt(digits[:0], t.revision, 10)) + len(`",`)
}

// verdict says whether decoding an object gives the stored JSON again.
type verdict int8

const (
	unknown verdict = iota
	asStored
	otherwise
)

// verdict returns the verdict on kv, if it is known.
func (r *reader) verdict(kv *raftstore.KeyValue) verdict {
	if m, ok := kv.Memo().(*memo); ok && m.owner == r.id {
		return m.verdict
	}
	return unknown
}

// setVerdict records the verdict on kv.
func (r *reader) setVerdict(kv *raftstore.KeyValue, v verdict) {
	if d := r.cached(kv); d != nil {
		r.setMemo(kv, d, v)
		return
	}
	kv.SetMemo(r.verdicts[v])
}

// text returns kv's JSON without decoding it; ok is false unless decoding is known to give the stored JSON. labels,
// which may be nil, is called with each of its labels.
func (r *reader) text(ctx context.Context, kv *raftstore.KeyValue, labels func(key, value []byte)) (t Text, ok bool, err error) {
	if r.verdict(kv) != asStored {
		return t, false, nil
	}
	data, _, err := r.decrypt(ctx, kv)
	if err != nil {
		return t, false, err
	}
	t = Text{data: bytes.TrimSuffix(data, newline), revision: kv.ModRevision}
	t.at, ok = versionOffset(t.data, labels)
	return t, ok, nil
}

var newline = []byte{'\n'}

// compare returns the JSON of obj, which was decoded from kv, and records whether it equals the stored JSON.
func (r *reader) compare(ctx context.Context, kv *raftstore.KeyValue, obj *unstructured.Unstructured) (t Text, err error) {
	raw, err := obj.MarshalJSON()
	if err != nil {
		return t, err
	}
	raw = bytes.TrimSuffix(raw, newline)
	data, _, err := r.decrypt(ctx, kv)
	if err != nil {
		return t, err
	}
	stored := Text{data: bytes.TrimSuffix(data, newline), revision: kv.ModRevision}
	labels := 0
	have := obj.GetLabels()
	at, ok := versionOffset(stored.data, func(key, value []byte) {
		if v, ok := have[string(key)]; ok && v == string(value) {
			labels++
		}
	})
	stored.at = at
	if ok && labels == len(have) && bytes.Equal(stored.Append(make([]byte, 0, len(raw))), raw) {
		r.setVerdict(kv, asStored)
		return stored, nil
	}
	r.setVerdict(kv, otherwise)
	return Text{data: raw}, nil
}

// verbatimGet answers a Get with a text. If it returns false, the caller has to decode kv into out.
func (s *store) verbatimGet(ctx context.Context, kv *raftstore.KeyValue, out runtime.Object) (bool, error) {
	v := verbatimFrom(ctx)
	u, ok := out.(*unstructured.Unstructured)
	if v == nil || !ok {
		return false, nil
	}
	if s.reader.verdict(kv) == otherwise {
		return false, nil
	}
	t, ok, err := s.reader.text(ctx, kv, nil)
	if err != nil {
		return false, err
	}
	if !ok {
		if err := s.reader.fill(ctx, kv, u); err != nil {
			return false, err
		}
		if t, err = s.reader.compare(ctx, kv, u); err != nil || s.reader.verdict(kv) != asStored {
			return err == nil, nil // out is filled; the caller encodes it as usual
		}
	}
	shell := map[string]any{"metadata": map[string]any{}}
	for _, name := range []string{"apiVersion", "kind"} {
		if is, ok := u.Object[name]; ok {
			shell[name] = is
		}
	}
	u.Object = shell
	v.Taken, v.Texts = true, []Text{t}
	return true, nil
}

// offered returns the offer that a list may accept, nil if there is none.
func offered(ctx context.Context, listObj runtime.Object, opts storage.ListOptions) *Verbatim {
	v := verbatimFrom(ctx)
	if _, ok := listObj.(*unstructured.UnstructuredList); !ok || v == nil || !opts.Recursive {
		return nil
	}
	if p := opts.Predicate; p.Field != nil && !p.Field.Empty() || sharded(p) {
		return nil
	}
	return v
}

// addText is add for a list of texts.
func (p *page) addText(kv *raftstore.KeyValue) bool {
	var see func(key, value []byte)
	if p.chosen != nil {
		p.chosen.Reset()
		see = p.chosen.Add
	}
	t, ok, err := p.s.reader.text(p.ctx, kv, see)
	if err != nil {
		return p.unreadable(kv.Key, err)
	}
	if ok {
		if p.chosen == nil || p.chosen.Match() {
			p.texts = append(p.texts, t)
		}
		return true
	}
	obj, _, err := p.object(kv)
	if err != nil {
		return p.unreadable(kv.Key, err)
	}
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		p.err = errNotUnstructured
		return false
	}
	matches, err := p.opts.Predicate.Matches(obj)
	if matches = matches && err == nil; !matches && p.s.reader.verdict(kv) != unknown {
		return true
	}
	if t, err = p.s.reader.compare(p.ctx, kv, u); err != nil {
		return p.unreadable(kv.Key, err)
	}
	if matches {
		p.texts = append(p.texts, t)
	}
	return true
}
