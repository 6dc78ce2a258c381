package rules

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

const byStorageClass = "balsa/storage-class"

// IndexCapacities makes CSIStorageCapacities findable by their class.
func IndexCapacities(capacities cache.Indexer) error {
	if _, ok := capacities.GetIndexers()[byStorageClass]; ok {
		return nil
	}
	err := capacities.AddIndexers(cache.Indexers{byStorageClass: func(o any) ([]string, error) {
		if c, ok := o.(*storagev1.CSIStorageCapacity); ok {
			return []string{c.StorageClassName}, nil
		}
		return nil, nil
	}})
	if err != nil {
		return fmt.Errorf("indexing storage capacities by class: %w", err)
	}
	return nil
}

// room is where a driver says that it has room for a claim.
type room struct {
	unlimited bool
	at        map[place]bool
	selectors []labels.Selector
}

// roomFor gathers where there is room for a claim: one pass over the capacities of its class, once for each attempt. A
// driver that publishes none (CSIDriver storageCapacity) has room everywhere until it says otherwise.
func roomFor(l *Listers, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (*room, error) {
	r := &room{at: map[place]bool{}}
	size, asks := claim.Spec.Resources.Requests[v1.ResourceStorage]
	driver, err := l.CSIDrivers.Get(class.Provisioner)
	if errors.IsNotFound(err) || err == nil && (driver.Spec.StorageCapacity == nil || !*driver.Spec.StorageCapacity) || !asks {
		r.unlimited = true
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	all, err := l.CapacityIndex.ByIndex(byStorageClass, class.Name)
	if err != nil {
		return nil, err
	}
	for _, o := range all {
		c, ok := o.(*storagev1.CSIStorageCapacity)
		if !ok || !suffices(c, size) || c.NodeTopology == nil {
			continue // without a topology it is of no node
		}
		if t := c.NodeTopology; len(t.MatchLabels) == 1 && len(t.MatchExpressions) == 0 {
			for key, value := range t.MatchLabels {
				r.at[place{key, value}] = true
			}
			continue
		}
		if s, err := metav1.LabelSelectorAsSelector(c.NodeTopology); err == nil {
			r.selectors = append(r.selectors, s)
		}
	}
	return r, nil
}

// suffices: the largest volume there can be counts and, where the driver does not tell, all that is free.
func suffices(c *storagev1.CSIStorageCapacity, size resource.Quantity) bool {
	limit := c.Capacity
	if c.MaximumVolumeSize != nil {
		limit = c.MaximumVolumeSize
	}
	return limit != nil && limit.Cmp(size) >= 0
}

// on reports whether there is room for the claim where the node reaches it.
func (r *room) on(n *v1.Node) bool {
	if r.unlimited {
		return true
	}
	if len(r.at) > 0 {
		for key, value := range n.Labels {
			if r.at[place{key, value}] {
				return true
			}
		}
	}
	for _, s := range r.selectors {
		if s.Matches(labels.Set(n.Labels)) {
			return true
		}
	}
	return false
}
