package control

import (
	"net/http"

	"github.com/emicklei/go-restful/v3"
)

// installIssuer serves the two documents by which others verify service-account tokens. They are routes and not plain
// handlers so that the OpenAPI documents have them, in upstream's words.
func (s *Server) installIssuer() {
	for _, d := range []struct {
		path, contentType, operation, text string
		handler                            http.Handler
	}{{
		"/.well-known/openid-configuration", restful.MIME_JSON, "getServiceAccountIssuerOpenIDConfiguration",
		"get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'", s.access.authn.OpenIDConfig,
	}, {
		"/openid/v1/jwks", "application/jwk-set+json", "getServiceAccountIssuerOpenIDKeyset",
		"get service account issuer OpenID JSON Web Key Set (contains public token verification keys)", s.access.authn.OpenIDKeys,
	}} {
		ws := new(restful.WebService).Produces(d.contentType)
		ws.Path(d.path).Route(ws.GET("").Operation(d.operation).Doc(d.text).Returns(http.StatusOK, "OK", "").
			To(func(r *restful.Request, w *restful.Response) { d.handler.ServeHTTP(w, r.Request) }))
		s.generic.Handler.GoRestfulContainer.Add(ws)
	}
}
