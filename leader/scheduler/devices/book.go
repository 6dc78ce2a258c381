package devices

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// byExtended finds the claim that was made for a pod's extended resources, by the pod's UID.
	byExtended = "balsa/extended-resource-claim"
	// compiled is how many CEL expressions are kept.
	compiled = 64
)

// features are those of upstream that are on by default in this version of Kubernetes.
var features = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true,
	ConsumableCapacity: true,
}

// Config is where a Book reads.
type Config struct {
	Claims  cache.Indexer // see IndexClaims
	Classes resourcelisters.DeviceClassLister
	Slices  resourcelisters.ResourceSliceLister
	Clock   clock.PassiveClock
}

// Book holds which devices claims have. Methods are safe for concurrent use unless they say otherwise.
type Book struct {
	cfg     Config
	classes *extendedresourcecache.ExtendedResourceCache
	cel     *cel.Cache

	mu       sync.Mutex
	reserved map[types.UID]*resourceapi.AllocationResult // given to claims, and not yet shown by an event
	changes  []change                                    // since the last Allocator
	stale    bool                                        // slices or classes changed since
	changed  chan struct{}                               // closed and replaced when any claim changes; nil when no goroutine waits

	// Used by the goroutine that calls Allocator.
	index     *index
	slices    []*resourceapi.ResourceSlice
	allocator structured.Allocator
}

type change struct {
	claim types.UID
	now   *resourceapi.AllocationResult
}

// New returns a Book of no devices.
func New(cfg Config) *Book {
	return &Book{
		cfg: cfg, classes: extendedresourcecache.NewExtendedResourceCache(klog.Background()),
		cel:      cel.NewCache(compiled, cel.Features{EnableConsumableCapacity: true}),
		reserved: map[types.UID]*resourceapi.AllocationResult{}, index: newIndex(), stale: true,
	}
}

// IndexClaims makes the claims of extended resources findable by their pod.
func IndexClaims(claims cache.Indexer) error {
	if _, ok := claims.GetIndexers()[byExtended]; ok {
		return nil
	}
	err := claims.AddIndexers(cache.Indexers{byExtended: func(o any) ([]string, error) {
		claim, ok := o.(*resourceapi.ResourceClaim)
		if !ok || claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] != "true" {
			return nil, nil
		}
		for _, ref := range claim.OwnerReferences {
			if ref.Controller != nil && *ref.Controller && ref.Kind == "Pod" {
				return []string{string(ref.UID)}, nil
			}
		}
		return nil, nil
	}})
	if err != nil {
		return fmt.Errorf("index claims of extended resources: %w", err)
	}
	return nil
}

// Now is the time by which a binding is late.
func (b *Book) Now() time.Time { return b.cfg.Clock.Now() }

// Claim returns a claim of the cluster, as events have shown it.
func (b *Book) Claim(namespace, name string) (*resourceapi.ResourceClaim, error) {
	return resourcelisters.NewResourceClaimLister(b.cfg.Claims).ResourceClaims(namespace).Get(name)
}

// ExtendedClaim returns the claim that an earlier attempt made for the pod's extended resources, nil when there is none.
func (b *Book) ExtendedClaim(pod types.UID) (*resourceapi.ResourceClaim, error) {
	found, err := b.cfg.Claims.ByIndex(byExtended, string(pod))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	claim, _ := found[0].(*resourceapi.ResourceClaim)
	return claim, nil
}

// Class returns a DeviceClass by its name.
func (b *Book) Class(name string) (*resourceapi.DeviceClass, error) { return b.cfg.Classes.Get(name) }

// ClassOf returns the DeviceClass that stands for an extended resource, nil when none does.
func (b *Book) ClassOf(resource v1.ResourceName) *resourceapi.DeviceClass {
	return b.classes.GetDeviceClass(resource)
}

// ClassHandler must get the events of DeviceClasses.
func (b *Book) ClassHandler() cache.ResourceEventHandler { return b.classes }

// SlicesChanged says that a ResourceSlice came, changed or went.
func (b *Book) SlicesChanged() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stale = true
}

// ClaimChanged takes in an event; now is nil when the claim is gone.
func (b *Book) ClaimChanged(old, now *resourceapi.ResourceClaim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if old != nil && (now == nil || now.UID != old.UID) {
		delete(b.reserved, old.UID)
		b.changes = append(b.changes, change{claim: old.UID})
	}
	if now != nil {
		switch {
		case now.Status.Allocation != nil:
			delete(b.reserved, now.UID)
			b.changes = append(b.changes, change{now.UID, now.Status.Allocation})
		case b.reserved[now.UID] == nil:
			b.changes = append(b.changes, change{claim: now.UID})
		}
	}
	b.wake()
}

func (b *Book) wake() {
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// Wait returns a channel that is closed at the next change of any claim.
func (b *Book) Wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	return b.changed
}

// Reserve gives a claim its devices until an event shows that it has them, or Release.
func (b *Book) Reserve(claim types.UID, a *resourceapi.AllocationResult) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reserved[claim] = a
	b.changes = append(b.changes, change{claim, a})
}

// Rename moves a reservation to the UID that the API server gave to a new claim.
func (b *Book) Rename(from, to types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.reserved[from]
	if a == nil {
		return
	}
	delete(b.reserved, from)
	b.reserved[to] = a
	b.changes = append(b.changes, change{claim: from}, change{to, a})
}

// Release takes a reservation back that no event has shown; false when there is none.
func (b *Book) Release(claim types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reserved[claim] == nil {
		return false
	}
	delete(b.reserved, claim)
	b.changes = append(b.changes, change{claim: claim})
	return true
}

// Reserved reports whether the claim was given devices that no event has shown yet.
func (b *Book) Reserved(claim types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reserved[claim] != nil
}

// Allocator returns the library's allocator over the devices that no claim has. It is valid until the next call. Only one goroutine
// may call it and use the allocator.
func (b *Book) Allocator(ctx context.Context) (structured.Allocator, error) {
	changes, stale := b.take()
	for _, c := range changes {
		b.index.set(c.claim, c.now)
	}
	if !stale && len(changes) == 0 && b.allocator != nil {
		return b.allocator, nil
	}
	var err error
	if stale {
		if b.slices, err = b.cfg.Slices.List(labels.Everything()); err != nil {
			b.SlicesChanged()
			return nil, err
		}
	}
	b.allocator, err = structured.NewAllocator(ctx, features, b.index.state, classes{b.cfg.Classes}, b.slices, b.cel)
	if err != nil {
		b.allocator = nil
	}
	return b.allocator, err
}

func (b *Book) take() (changes []change, stale bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changes, stale = b.changes, b.stale
	b.changes, b.stale = nil, false
	return changes, stale
}

// classes is the allocator's view of DeviceClasses.
type classes struct {
	resourcelisters.DeviceClassLister
}

func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	return c.DeviceClassLister.List(labels.Everything())
}
