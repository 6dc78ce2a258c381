package storage

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/balsahq/balsa/fault"
)

// DefaultMemoBytes is the default budget, in encoded bytes, of the objects whose decoded form is kept: 16 MiB, which
// cost about 100 MiB decoded.
const DefaultMemoBytes = 16 << 20

// decoded is one decoded version of an object, with its resourceVersion. obj is read-only.
type decoded struct {
	obj  runtime.Object
	size int         // of the encoding, bytes
	used atomic.Bool // since the last visit of Memos
	// visited: Memos.dropUnused has visited it once; guarded by Memos.mu.
	visited bool

	mu     sync.Mutex
	shared weak.Pointer[sharedObject] // guarded by mu
}

// share wraps the object for watchers. Watchers that hold it at the same time hold the same wrapper, and with it the
// encodings made so far. It is freed when the last of them has sent it.
func (d *decoded) share() *sharedObject {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.shared.Value(); s != nil {
		return s
	}
	s := &sharedObject{source: d}
	d.shared = weak.Make(s)
	return s
}

// memo is the content of a KeyValue's slot. owner tells apart readers that decode the same bytes differently, such as
// two served versions of one custom resource.
type memo struct {
	owner   *readerID
	ref     weak.Pointer[decoded] // nil pointer when only the verdict is kept
	verdict verdict
}

// Memos keeps recently used decoded objects alive, up to a budget of encoded bytes. When it is full the oldest object
// is dropped, unless it was used since the last visit (the clock, or second chance, algorithm): one large scan does not
// drop the objects in use. Objects that were not used for two visits of dropUnused are dropped too, so nothing remains
// after a burst of load. Its methods are safe for concurrent use.
type Memos struct {
	budget int

	mu          sync.Mutex
	bytes       int        // guarded by mu
	queue       *list.List // of *decoded, oldest first; guarded by mu
	dropPending bool       // a call of dropUnused is due; guarded by mu
}

// dropUnusedEvery is the time between two calls of dropUnused while objects are kept.
const dropUnusedEvery = 20 * time.Second

// NewMemos returns a Memos with a budget in encoded bytes; 0 keeps nothing.
func NewMemos(budget int) *Memos { return &Memos{budget: budget, queue: list.New()} }

// listShare is how many encoded bytes one list may add.
func (m *Memos) listShare() int { return m.budget / 4 }

// keep adds d. It skips an object larger than an eighth of the budget, which would displace too many others.
func (m *Memos) keep(d *decoded) {
	if d.size > m.budget/8 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d.visited = false
	m.queue.PushBack(d)
	m.bytes += d.size
	if !m.dropPending {
		m.dropPending = true
		time.AfterFunc(dropUnusedEvery, fault.Contained("control/storage", m.dropUnused))
	}
	for m.bytes > m.budget {
		oldest := m.queue.Front()
		o := oldest.Value.(*decoded)
		if o.used.Swap(false) {
			m.queue.MoveToBack(oldest)
			continue
		}
		m.queue.Remove(oldest)
		m.bytes -= o.size
	}
}

// dropUnused drops the objects that were not used between the last two visits.
func (m *Memos) dropUnused() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for e := m.queue.Front(); e != nil; {
		next := e.Next()
		switch o := e.Value.(*decoded); {
		case o.used.Swap(false):
		case o.visited:
			m.queue.Remove(e)
			m.bytes -= o.size
		default:
			o.visited = true
		}
		e = next
	}
	if m.dropPending = m.queue.Len() > 0; m.dropPending {
		time.AfterFunc(dropUnusedEvery, fault.Contained("control/storage", m.dropUnused))
	}
}
