package fastread

import (
	"encoding/binary"
	"sync"

	"k8s.io/apimachinery/pkg/watch"
)

const (
	// framesBudget is how many bytes of events are kept for watchers that come to
	// them later than the first.
	framesBudget = 4 << 20
	framesMost   = 2048
)

// frameKey names an event on the wire: what happened to which key at which
// revision, as one served version and in one encoding.
type frameKey struct {
	kind     *kind
	key      string
	revision int64
	event    watch.EventType
	protobuf bool
}

// frame is an event on the wire, made by the first watcher that needs it.
type frame struct {
	once sync.Once
	raw  []byte
	err  error
	size int // as it is in the account; guarded by frames.mu
}

// frames keeps the newest events, so that each is made once for all its
// watchers. The oldest goes first; a watcher that is so late makes it anew.
type frames struct {
	mu       sync.Mutex
	byKey    map[frameKey]*frame // guarded by mu
	queue    []frameKey          // oldest first; guarded by mu
	bytes    int                 // guarded by mu
	watchers int                 // with the last nothing is kept; guarded by mu
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

// get returns an event, made with make if nobody has made it yet. It is read-only.
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
		f.made(key, fr)
	})
	return fr.raw, fr.err
}

// made enters the size of an event into the account. Only those that are made
// already are in it.
func (f *frames) made(key frameKey, fr *frame) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byKey[key] != fr {
		return // dropped meanwhile
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

// jsonEvent is an event as metav1.WatchEvent is in JSON. text is the object
// without its type.
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

// protobufEvent is the same in protobuf, with its length before it.
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
