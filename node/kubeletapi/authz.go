package kubeletapi

import (
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// verbs are the API verbs for HTTP methods.
var verbs = map[string]string{
	http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update",
	http.MethodPatch: "patch", http.MethodDelete: "delete",
}

// subresources returns the subresources of nodes of which one must be allowed for a request to path: a narrow one
// where there is one, and where that was once part of nodes/proxy, proxy too.
func subresources(path string) []string {
	switch {
	case within(path, "/pods"), within(path, "/runningpods"):
		return []string{"pods", "proxy"}
	case within(path, "/healthz"):
		return []string{"healthz", "proxy"}
	case within(path, "/configz"):
		return []string{"configz", "proxy"}
	case within(path, "/stats"):
		return []string{"stats"}
	case within(path, "/metrics"):
		return []string{"metrics"}
	case within(path, "/logs"), path == "/balsa/log":
		return []string{"log"}
	case within(path, "/checkpoint"):
		return []string{"checkpoint"}
	}
	return []string{"proxy"}
}

// within tells whether path is dir or below it.
func within(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == '/')
}

// authorized puts authentication and authorization in front of next.
func (s *Server) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, ok, err := s.cfg.Authenticator.AuthenticateRequest(r)
		if err != nil {
			s.log.Info("request cannot be authenticated", "from", r.RemoteAddr, "err", err)
		}
		if err != nil || !ok {
			writeError(w, http.StatusUnauthorized, "Unauthorized")
			return
		}
		allowed, err := s.allowed(r, who.User)
		verb, subs := verbs[r.Method], subresources(r.URL.Path)
		switch {
		case err != nil:
			s.log.Warn("cannot authorize a request", "user", who.User.GetName(), "err", err)
			writeErrorf(w, http.StatusInternalServerError, "Authorization error (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", who.User.GetName(), verb, subs)
		case !allowed:
			writeErrorf(w, http.StatusForbidden, "Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)\n", who.User.GetName(), verb, subs)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (s *Server) allowed(r *http.Request, who user.Info) (bool, error) {
	for _, sub := range subresources(r.URL.Path) {
		decision, _, err := s.cfg.Authorizer.Authorize(r.Context(), authorizer.AttributesRecord{
			User: who, Verb: verbs[r.Method], APIVersion: "v1", Resource: "nodes", Subresource: sub,
			Name: s.cfg.NodeName, ResourceRequest: true, Path: r.URL.Path,
		})
		if err != nil {
			return false, err
		}
		if decision == authorizer.DecisionAllow {
			return true, nil
		}
	}
	return false, nil
}
