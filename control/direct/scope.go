package direct

import (
	"k8s.io/apiserver/pkg/endpoints/request"
)

// routed reports whether info.Path is the path at which k8s.io/apiserver serves a read of k: only then is what was
// authorized, a verb in a namespace on a name, what is read. RequestInfo is made of other paths too. A kind without
// namespaces below a namespace is authorized by roles of that namespace, and served nowhere; the /watch/ prefix gives
// a watch a name, and is left to k8s.io/apiserver.
func (k *kind) routed(info *request.RequestInfo) bool {
	path := "/" + info.APIPrefix
	if info.APIGroup != "" {
		path += "/" + info.APIGroup
	}
	path += "/" + info.APIVersion
	if k.Store.NamespaceScoped() && info.Namespace != "" {
		path += "/namespaces/" + info.Namespace
	}
	path += "/" + info.Resource
	if info.Verb == "get" {
		path += "/" + info.Name
	}
	return path == info.Path
}
