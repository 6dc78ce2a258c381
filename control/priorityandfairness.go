package control

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/balsahq/balsa/control/auth/listers"
	"github.com/balsahq/balsa/control/limits"
	"github.com/balsahq/balsa/raftstore"
)

// newPriorityAndFairness makes what shares the server out among its network clients.
func (s *Server) newPriorityAndFairness() error {
	var err error
	s.watches = limits.NewWatches(s.cfg.MaxStreams, longRunning, codecs)
	s.priorityAndFairness, err = limits.New(limits.Config{
		Client: s.client, Seats: s.cfg.MaxReads + s.cfg.MaxWrites, Patience: s.cfg.RequestTimeout / 4,
		Count: limits.NewCounts(s.resourceStats).Get, Logger: s.log,
	})
	return err
}

// runPriorityAndFairness follows the configuration of priority and fairness once its default objects are there. Until then the two mandatory
// priority levels count.
func (s *Server) runPriorityAndFairness(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.ready:
		return s.priorityAndFairness.Run(ctx)
	}
}

// resourceStats looks at the stored objects of a resource, as its name and group part them ("deployments.apps").
func (s *Server) resourceStats(resource string) storage.Stats {
	gr := schema.ParseGroupResource(resource)
	prefix := listers.DefaultPrefix(gr)
	if s.set == nil || s.set.Store(gr.Group, gr.Resource) == nil {
		if !strings.Contains(gr.Group, ".") { // no custom resource
			return storage.Stats{}
		}
		prefix = keyPrefix + "/" + gr.Group + "/" + gr.Resource + "/"
	}
	var n, size int64
	s.cfg.Store.View().Ascend(prefix, raftstore.PrefixEnd(prefix), func(kv *raftstore.KeyValue) bool {
		n, size = n+1, size+int64(len(kv.Value))
		return true
	})
	if n == 0 {
		return storage.Stats{}
	}
	return storage.Stats{ObjectCount: n, EstimatedAverageObjectSizeBytes: max(1, size/n)}
}
