package fastread

import (
	"encoding/binary"
	"sync"

	"k8s.io/apimachinery/pkg/watch"
)

const (
	// framesBudget bounds the encoded events that are kept for later watchers, in bytes.
	framesBudget = 4 << 20
	framesMost   = 2048
)

// frameKey identifies an encoded event: a change of a key at a revision, in one served version and one encoding.
type frameKey struct {
	kind     *kind
	key      string
	revision int64
	event    watch.EventType
	protobuf bool
}

// frame is an encoded event, made by the first watcher that needs it.
type frame struct {
	once sync.Once
	raw  []byte
	err  error
	size int // as counted in frames.bytes; guarded by frames.mu
}

// frames keeps the newest encoded events, so that each is encoded once for all watchers. The oldest is dropped first; a
// watcher that comes after that encodes the event again.
type frames struct {
	mu       sync.Mutex
	byKey    map[frameKey]*frame // guarded by mu
	queue    []frameKey          // oldest first; guarded by mu
	bytes    int                 // guarded by mu
	watchers int                 // without watchers nothing is kept; guarded by mu
}

// join and leave count the watchers.
func (f *frames) join() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers++
}

func (f *frames) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watchers--; f.watchers == 0 {
		f.byKey, f.queue, f.bytes = nil, nil, 0
	}
}

// get returns an encoded event, and makes it with make the first time. The bytes are read-only.
func (f *frames) get(key frameKey, make func() ([]byte, error)) ([]byte, error) {
	f.mu.Lock()
	fr := f.byKey[key]
	if fr == nil {
		fr = &frame{}
		if f.byKey == nil {
			f.byKey = map[frameKey]*frame{}
		}
		f.byKey[key] = fr
		f.queue = append(f.queue, key)
	}
	f.mu.Unlock()
	fr.once.Do(func() {
		fr.raw, fr.err = make()
		f.count(key, fr)
	})
	return fr.raw, fr.err
}

// count adds the size of an event to frames.bytes once it is encoded.
func (f *frames) count(key frameKey, fr *frame) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byKey[key] != fr {
		return // dropped while it was encoded
	}
	fr.size = len(fr.raw)
	f.bytes += fr.size
	for len(f.queue) > 1 && (f.bytes > framesBudget || len(f.queue) > framesMost) {
		oldest := f.queue[0]
		f.queue = f.queue[1:]
		f.bytes -= f.byKey[oldest].size
		delete(f.byKey, oldest)
	}
}

// jsonEvent appends an event in the JSON form of metav1.WatchEvent. typed holds the object's kind and apiVersion, text
// the rest of the object.
func jsonEvent(b []byte, event watch.EventType, typed string, text []byte) []byte {
	b = append(b, `{"type":"`...)
	b = append(b, event...)
	b = append(b, `","object":{`...)
	b = append(b, typed...)
	b = append(b, ',')
	b = append(b, text[1:]...)
	return append(b, '}', '\n')
}

// Fields of metav1.WatchEvent and of the runtime.RawExtension in it.
const eventType, eventObject, extensionRaw = 1, 2, 1

// protobufEvent appends an event in the protobuf form of metav1.WatchEvent, after its length.
func protobufEvent(b []byte, event watch.EventType, typeMeta []byte, it *item) []byte {
	delimitedSize := func(n int) int { return 1 + uvarintSize(n) + n }
	object := it.size()
	whole := len(magic) + delimitedSize(len(typeMeta)) + delimitedSize(object) + delimitedSize(0) + delimitedSize(0)
	extension := delimitedSize(whole)
	size := delimitedSize(len(event)) + delimitedSize(extension)
	b = binary.BigEndian.AppendUint32(b, uint32(size))
	b = append(appendHead(b, eventType, len(event)), event...)
	b = appendHead(b, eventObject, extension)
	b = appendHead(b, extensionRaw, whole)
	b = openEnvelope(b, typeMeta, object)
	b = it.append(b)
	return closeEnvelope(b)
}
