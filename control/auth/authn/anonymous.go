package authn

import (
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// anonymousPaths may be requested without credentials; the request is still authorized as system:anonymous. A path that
// ends in a slash stands for everything below it.
var anonymousPaths = []string{
	"/healthz", "/healthz/", "/livez", "/livez/", "/readyz", "/readyz/", "/version", "/version/",
	"/.well-known/openid-configuration", "/openid/v1/jwks",
	"/openapi", "/openapi/",
}

func anonymous(req *http.Request) (*authenticator.Response, bool, error) {
	if !anonymousPath(req.URL.Path) {
		return nil, false, nil
	}
	auds, _ := authenticator.AudiencesFrom(req.Context())
	return &authenticator.Response{
		User:      anonymousUser(),
		Audiences: auds,
	}, true, nil
}

// anonymousPath reports whether a path may be requested without credentials. Discovery documents are "/api",
// "/api/VERSION", "/apis", "/apis/GROUP" and "/apis/GROUP/VERSION"; deeper paths are objects.
func anonymousPath(path string) bool {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch parts[0] {
	case "api":
		return len(parts) <= 2
	case "apis":
		return len(parts) <= 3
	}
	for _, p := range anonymousPaths {
		if path == p || (strings.HasSuffix(p, "/") && strings.HasPrefix(path, p)) {
			return true
		}
	}
	return false
}
