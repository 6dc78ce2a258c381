package garbage

import (
	"errors"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// resource is a kind that can be collected.
type resource struct {
	gvr        schema.GroupVersionResource
	kind       string
	namespaced bool
}

// ignored are kinds that are not watched: there are many objects of them, and they never own others or are owned.
var ignored = map[schema.GroupResource]bool{
	{Resource: "events"}:                         true,
	{Group: "events.k8s.io", Resource: "events"}: true,
}

// kinds is the last result of discovery. Safe for concurrent use.
type kinds struct {
	mu     sync.Mutex
	byKind map[schema.GroupKind]resource
}

func (k *kinds) lookup(group, kind string) (resource, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, ok := k.byKind[schema.GroupKind{Group: group, Kind: kind}]
	return r, ok
}

// refresh asks discovery, keeps every kind for lookups, and returns those that can be watched and deleted. Groups that
// could not be discovered keep what was known of them.
func (k *kinds) refresh(d discovery.DiscoveryInterface) ([]resource, error) {
	lists, err := discovery.ServerPreferredResources(d)
	var partial *discovery.ErrGroupDiscoveryFailed
	if err != nil && !errors.As(err, &partial) {
		return nil, err
	}
	found := map[schema.GroupKind]resource{}
	var out []resource
	for _, l := range lists {
		gv, parseErr := schema.ParseGroupVersion(l.GroupVersion)
		if parseErr != nil {
			err = errors.Join(err, parseErr)
			continue
		}
		for _, r := range l.APIResources {
			if !slices.Contains(r.Verbs, "delete") {
				continue
			}
			one := resource{gvr: gv.WithResource(r.Name), kind: r.Kind, namespaced: r.Namespaced}
			found[schema.GroupKind{Group: gv.Group, Kind: r.Kind}] = one
			watchable := slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch")
			if watchable && !ignored[one.gvr.GroupResource()] {
				out = append(out, one)
			}
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if partial != nil {
		for gk, r := range k.byKind {
			if _, failed := partial.Groups[r.gvr.GroupVersion()]; failed {
				found[gk] = r
				out = append(out, r)
			}
		}
	}
	k.byKind = found
	return out, err
}
