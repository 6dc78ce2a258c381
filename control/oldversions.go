package control

import (
	"net/http"
	"slices"

	"github.com/emicklei/go-restful/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"

	"github.com/balsahq/balsa/control/kinds"
	"github.com/balsahq/balsa/control/legacy/apis"
)

// Everything here does nothing unless Config.LegacyAPIs is set.

// moveOldVersions gives requests for old versions the path of the served one.
func (s *Server) moveOldVersions(next http.Handler) http.Handler {
	if !s.cfg.LegacyAPIs {
		return next
	}
	return apis.Front(next)
}

// convertOldVersions converts bodies and answers of such requests.
func (s *Server) convertOldVersions(next http.Handler) http.Handler {
	if !s.cfg.LegacyAPIs {
		return next
	}
	return apis.Convert(next, maxBody, codecs)
}

// notForOldVersions leads requests for old versions past the fast reads, whose answers are not converted.
func (s *Server) notForOldVersions(fast, next http.Handler) http.Handler {
	if !s.cfg.LegacyAPIs {
		return fast
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if apis.Asked(r) {
			next.ServeHTTP(w, r)
			return
		}
		fast.ServeHTTP(w, r)
	})
}

// oldVersions are the old versions that discovery shows.
func (s *Server) oldVersions() []schema.GroupVersion {
	if !s.cfg.LegacyAPIs {
		return nil
	}
	return apis.Versions()
}

// describeOldVersions enters them into discovery, behind all others: a client that names no version gets today's.
func (s *Server) describeOldVersions() {
	for _, gv := range s.oldVersions() {
		ws := new(restful.WebService).Path("/apis/" + gv.String()).Produces("*/*")
		discovery.NewAPIVersionHandler(codecs, gv, discovery.APIResourceListerFunc(func() []metav1.APIResource { return apis.Resources(gv) })).AddToWebService(ws)
		s.generic.Handler.GoRestfulContainer.Add(ws)
		s.discovery.AddGroupVersion(gv.Group, apis.Discovery(gv))
		s.discovery.SetGroupVersionPriority(metav1.GroupVersion(gv), 1, 1)
		if servesNothingElse(gv.Group) {
			shown := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
			group := metav1.APIGroup{Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{shown}, PreferredVersion: shown}
			s.generic.DiscoveryGroupManager.AddGroup(group)
			s.generic.Handler.GoRestfulContainer.Add(discovery.NewAPIGroupHandler(codecs, group).WebService())
		}
	}
}

// servesNothingElse tells whether a group has old versions only: "extensions".
func servesNothingElse(group string) bool {
	return group != apiextensionsv1.GroupName && !slices.ContainsFunc(kinds.Groups, func(g kinds.Group) bool { return g.Name == group })
}

// isOfOldVersion tells whether a web service is the discovery of an old version. OpenAPI leaves them out: clients would
// look there for the kinds of the version, and check objects against nothing.
func (s *Server) isOfOldVersion(ws *restful.WebService) bool {
	return slices.ContainsFunc(s.oldVersions(), func(gv schema.GroupVersion) bool { return ws.RootPath() == "/apis/"+gv.String() }) ||
		s.cfg.LegacyAPIs && ws.RootPath() == "/apis/extensions"
}
