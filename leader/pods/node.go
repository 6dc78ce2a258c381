package pods

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

const byNode = "balsa/node"

// IndexByNode makes the pod informer findable by node. It may be asked for several times before the informer starts.
func IndexByNode(informer cache.SharedIndexInformer) error {
	if _, ok := informer.GetIndexer().GetIndexers()[byNode]; ok {
		return nil
	}
	err := informer.AddIndexers(cache.Indexers{byNode: func(o any) ([]string, error) {
		if p, ok := o.(*v1.Pod); ok && p.Spec.NodeName != "" {
			return []string{p.Spec.NodeName}, nil
		}
		return nil, nil
	}})
	if err != nil {
		return fmt.Errorf("indexing pods by node: %w", err)
	}
	return nil
}

// OnNode lists the pods bound to a node. They are shared with the cache: read only.
func OnNode(indexer cache.Indexer, node string) []*v1.Pod {
	objs, err := indexer.ByIndex(byNode, node)
	if err != nil { // only when IndexByNode was not called
		panic(err)
	}
	out := make([]*v1.Pod, 0, len(objs))
	for _, o := range objs {
		if p, ok := o.(*v1.Pod); ok {
			out = append(out, p)
		}
	}
	return out
}
