package node

import "k8s.io/client-go/tools/cache"

// PodInformer holds the pods bound to this node, for whoever shares them: the
// network reads their host ports. The agent runs it.
func (a *Agent) PodInformer() cache.SharedIndexInformer { return a.informer }
