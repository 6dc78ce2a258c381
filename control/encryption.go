package control

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/balsahq/balsa/control/encryption"
	"github.com/balsahq/balsa/control/kinds"
	"github.com/balsahq/balsa/raftstore"
)

// Names of the readiness checks of encryption; the name for the plug-ins is kube-apiserver's.
const (
	checkEncryption = "encryption"
	checkPlugins    = "kms-providers"
)

func (s *Server) newEncryption() (*encryption.Encryption, error) {
	return encryption.New(encryption.Config{
		Settings: s.cfg.Encryption, Prefix: keyPrefix + "/", Locate: s.resourceOfKey, Logger: s.log,
		Scan: func(prefix string, fn func(string, []byte) bool) {
			s.cfg.Store.View().Ascend(prefix, raftstore.PrefixEnd(prefix), func(kv *raftstore.KeyValue) bool {
				return fn(kv.Key, kv.Value)
			})
		},
	})
}

func (s *Server) encryptionChecks() []healthz.HealthChecker {
	checks := []healthz.HealthChecker{healthz.NamedCheck(checkEncryption, s.encryption.Check)}
	if s.encryption.On() {
		checks = append(checks, healthz.NamedCheck(checkPlugins, s.encryption.Plugins))
	}
	return checks
}

// resourceOfKey returns the resource and the name of the object with a stored key.
func (s *Server) resourceOfKey(key string) (gr schema.GroupResource, name string, ok bool) {
	rest, ok := strings.CutPrefix(key, keyPrefix+"/")
	if !ok {
		return gr, "", false
	}
	first, more, _ := strings.Cut(rest, "/")
	if strings.Contains(first, ".") { // a custom resource, or its definition: below its group
		resource, name, ok := strings.Cut(more, "/")
		return schema.GroupResource{Group: first, Resource: resource}, name, ok
	}
	s.rootsOnce.Do(func() { s.roots = keyRoots(s.set) })
	for _, end := range []int{len(first), len(first) + 1 + strings.Index(more+"/", "/")} { // "services/specs" has two parts
		if end < len(rest) {
			if gr, ok := s.roots[rest[:end]]; ok {
				return gr, rest[end+1:], true
			}
		}
	}
	return gr, "", false
}

// keyRoots are the resources of the table, by what their keys begin with below keyPrefix.
func keyRoots(set *kinds.Set) map[string]schema.GroupResource {
	roots := map[string]schema.GroupResource{}
	set.Each(func(_ *kinds.Row, _ schema.GroupVersion, store *genericregistry.Store) {
		roots[strings.Trim(store.KeyRootFunc(apirequest.NewContext()), "/")] = store.DefaultQualifiedResource
	})
	return roots
}
