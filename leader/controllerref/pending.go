package controllerref

import (
	"errors"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// forgetAfter bounds how long a write that never shows up in the cache can hold its owner back.
const forgetAfter = 5 * time.Minute

// Pending remembers the objects a controller wrote or deleted that its informer has not shown yet, so that it does not
// act on a cache older than its own last write. Resource versions of one resource grow with the store's revision, so a
// write has been shown once any object at least as new has. Safe for concurrent use.
type Pending struct {
	mu     sync.Mutex
	seen   uint64 // newest resource version the informer has shown
	owners map[types.UID]*pendingOwner
}

type pendingOwner struct {
	written map[types.UID]uint64 // resource version of the last write, 0 when unknown
	deleted map[types.UID]struct{}
	until   time.Time
}

// NewPending returns an empty memory.
func NewPending() *Pending {
	return &Pending{owners: map[types.UID]*pendingOwner{}}
}

// Observe is called for every object the informer shows, deleted ones included, before its owner is queued.
func (p *Pending) Observe(obj metav1.Object) {
	v := version(obj)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = max(p.seen, v)
}

// Wrote records that the owner created or updated obj, as the API returned it.
func (p *Pending) Wrote(owner types.UID, obj metav1.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of(owner).written[obj.GetUID()] = version(obj)
}

// Unfinished records what a creation made that failed with err only because the object was not seen in time: it waits for
// initializers. Its owner makes no second one meanwhile.
func (p *Pending) Unfinished(owner types.UID, err error) {
	var told apierrors.APIStatus
	if !apierrors.IsTimeout(err) || !errors.As(err, &told) {
		return
	}
	if d := told.Status().Details; d != nil && d.UID != "" {
		p.Wrote(owner, &metav1.ObjectMeta{UID: d.UID})
	}
}

// Deleted records that the owner deleted the object with this uid.
func (p *Pending) Deleted(owner, uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of(owner).deleted[uid] = struct{}{}
}

// Forget drops what is known of an owner that is gone.
func (p *Pending) Forget(owner types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.owners, owner)
}

// Settled reports whether the cached objects of owner show all it wrote.
func (p *Pending) Settled(owner types.UID, cached []metav1.Object) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.owners[owner]
	if o == nil {
		return true
	}
	if time.Now().After(o.until) {
		delete(p.owners, owner)
		return true
	}
	gone := o.deleted
	left := map[types.UID]struct{}{}
	for _, c := range cached {
		if want, ok := o.written[c.GetUID()]; ok && want <= version(c) {
			delete(o.written, c.GetUID())
		}
		if _, ok := gone[c.GetUID()]; ok && c.GetDeletionTimestamp() == nil {
			left[c.GetUID()] = struct{}{}
		}
	}
	o.deleted = left
	for uid, v := range o.written {
		if v != 0 && v <= p.seen {
			delete(o.written, uid)
		}
	}
	if len(o.written)+len(o.deleted) > 0 {
		return false
	}
	delete(p.owners, owner)
	return true
}

func (p *Pending) of(owner types.UID) *pendingOwner {
	o := p.owners[owner]
	if o == nil {
		o = &pendingOwner{written: map[types.UID]uint64{}, deleted: map[types.UID]struct{}{}}
		p.owners[owner] = o
	}
	o.until = time.Now().Add(forgetAfter)
	return o
}

func version(obj metav1.Object) uint64 {
	v, err := strconv.ParseUint(obj.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// Objects widens a slice of objects to the interface.
func Objects[T metav1.Object](in []T) []metav1.Object {
	out := make([]metav1.Object, len(in))
	for i := range in {
		out[i] = in[i]
	}
	return out
}
