package fastread

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balsahq/balsa/fault"
)

const (
	// DefaultBudget is how many bytes of renderings are kept by default.
	DefaultBudget = 48 << 20
	// idleAfter is the time without any read after which all renderings are dropped.
	idleAfter = 2 * time.Minute
)

// rendering identifies one version of one object.
type rendering struct {
	key      string
	revision int64
}

// kept is the JSON of a rendering, without kind and apiVersion, because items of a list have none.
type kept struct {
	rendering
	json []byte
	used atomic.Bool // since its last visit by keep
}

// renderings keeps the JSON that was read lately, up to a budget in bytes. When it is full, the oldest is dropped
// unless it was used since the last visit (the clock algorithm).
type renderings struct {
	budget int

	mu    sync.RWMutex
	bytes int                      // guarded by mu
	byKey map[string]*list.Element // of *kept; guarded by mu
	queue *list.List               // oldest first; guarded by mu
	touch atomic.Int64             // time of the last read, in nanoseconds
	timer *time.Timer              // guarded by mu; nil when nothing is kept
}

func newRenderings(budget int) *renderings {
	return &renderings{budget: budget, byKey: map[string]*list.Element{}, queue: list.New()}
}

// lookup fills into with the kept JSON of the wanted objects, and returns how many are missing.
func (r *renderings) lookup(wanted []rendering, into [][]byte) (missing int) {
	r.touch.Store(time.Now().UnixNano())
	r.mu.RLock()
	defer r.mu.RUnlock()
	for i := range wanted {
		if e := r.byKey[wanted[i].key]; e != nil {
			if have := e.Value.(*kept); have.revision == wanted[i].revision {
				if !have.used.Load() {
					have.used.Store(true)
				}
				into[i] = have.json
				continue
			}
		}
		missing++
	}
	return missing
}

// add adds a rendering.
func (r *renderings) add(key string, revision int64, json []byte) {
	size := len(json) + len(key)
	if size > r.budget/8 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.byKey[key]; old != nil {
		if old.Value.(*kept).revision > revision {
			return // a newer version is kept: this read was of an earlier state
		}
		r.drop(old)
	}
	r.byKey[key] = r.queue.PushBack(&kept{rendering: rendering{key, revision}, json: json})
	r.bytes += size
	for r.bytes > r.budget {
		oldest := r.queue.Front()
		if oldest.Value.(*kept).used.Swap(false) {
			r.queue.MoveToBack(oldest)
			continue
		}
		r.drop(oldest)
	}
	if r.timer == nil {
		r.timer = time.AfterFunc(idleAfter, fault.Contained("control/fastread", r.dropIdle))
	}
}

// drop removes one rendering. The caller holds r.mu.
func (r *renderings) drop(e *list.Element) {
	o := r.queue.Remove(e).(*kept)
	delete(r.byKey, o.key)
	r.bytes -= len(o.json) + len(o.key)
}

// dropIdle drops everything if nothing was read for idleAfter.
func (r *renderings) dropIdle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if since := time.Since(time.Unix(0, r.touch.Load())); since < idleAfter {
		r.timer.Reset(idleAfter - since)
		return
	}
	r.byKey, r.bytes, r.timer = map[string]*list.Element{}, 0, nil
	r.queue.Init()
}

// close stops the timer.
func (r *renderings) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
	}
}
