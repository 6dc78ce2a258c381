package control

import (
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// refuseCustomProtobuf refuses custom resources in protobuf with 415, because they have no protobuf encoding. Upstream's
// handler would panic: it has no strict decoder for that content type, and needs one by default.
func (s *Server) refuseCustomProtobuf(next http.Handler) http.Handler {
	accepted := []string{runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeCBOR}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost || r.Method == http.MethodPut {
			info, ok := apirequest.RequestInfoFrom(r.Context())
			if ok && strings.HasPrefix(r.Header.Get("Content-Type"), runtime.ContentTypeProtobuf) && s.isCustomResource(info.APIGroup, info.Resource) {
				gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
				responsewriters.ErrorNegotiated(negotiation.NewUnsupportedMediaTypeError(accepted), codecs, gv, w, r)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// isCustomResource reports whether a CustomResourceDefinition defines the resource.
func (s *Server) isCustomResource(group, resource string) bool {
	_, ok, err := s.extensions.Informers.Apiextensions().V1().CustomResourceDefinitions().Informer().GetStore().GetByKey(resource + "." + group)
	return ok && err == nil
}
