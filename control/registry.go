package control

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/balsahq/balsa/control/storage"
	"github.com/balsahq/balsa/raftstore"
)

// keyPrefix starts every object's key.
const keyPrefix = "/registry"

// specialKeyPrefixes are the kinds whose keys do not carry their own name; the same ones as in every Kubernetes cluster.
var specialKeyPrefixes = map[schema.GroupResource]string{
	{Resource: "replicationcontrollers"}:                "controllers",
	{Resource: "endpoints"}:                             "services/endpoints",
	{Resource: "nodes"}:                                 "minions",
	{Resource: "services"}:                              "services/specs",
	{Group: "networking.k8s.io", Resource: "ingresses"}: "ingress",

	{Group: "apiregistration.k8s.io", Resource: "apiservices"}: "apiregistration.k8s.io/apiservices",
}

// allEnabled is an APIResourceConfigSource that serves what is in the table.
type allEnabled struct{}

func (allEnabled) ResourceEnabled(schema.GroupVersionResource) bool           { return true }
func (allEnabled) AnyResourceForGroupEnabled(string) bool                     { return true }
func (allEnabled) ResourceExplicitlyEnabled(schema.GroupVersionResource) bool { return false }
func (allEnabled) VersionExplicitlyEnabled(schema.GroupVersion) bool          { return false }

// registryOptions says how kinds are stored: in the newest stable version, as protobuf.
func registryOptions(store *raftstore.Store, transformer func(schema.GroupResource) value.Transformer) genericregistry.RESTOptionsGetter {
	encoding := serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(legacyscheme.Scheme, effectiveVersion())
	factory := serverstorage.NewDefaultStorageFactory(storagebackend.Config{Prefix: keyPrefix}, runtime.ContentTypeProtobuf,
		legacyscheme.Codecs, encoding, allEnabled{}, specialKeyPrefixes)
	return storage.RESTOptions(storage.RESTConfig{Store: store, Factory: factory, Prefix: keyPrefix, Transformer: transformer})
}
