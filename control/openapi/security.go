package openapi

import (
	"net/http"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// The texts by which the documents describe authentication; they are upstream's.
const (
	scheme       = "BearerToken"
	schemeText   = "Bearer Token authentication"
	schemeHeader = "authorization"
	unauthorized = "Unauthorized"
)

// addSecurityV2 documents that every operation takes a bearer token and may answer 401.
func addSecurityV2(c *common.Config) {
	token := &spec.SecurityScheme{
		SecuritySchemeProps: spec.SecuritySchemeProps{Type: "apiKey", Name: schemeHeader, In: "header", Description: schemeText},
	}
	c.SecurityDefinitions = &spec.SecurityDefinitions{scheme: token}
	c.DefaultSecurity = []map[string][]string{{scheme: {}}}
	c.CommonResponses = map[int]spec.Response{
		http.StatusUnauthorized: {ResponseProps: spec.ResponseProps{Description: unauthorized}},
	}
}

// addSecurityV3 is addSecurityV2 for v3.
func addSecurityV3(c *common.OpenAPIV3Config) {
	token := &spec3.SecurityScheme{
		SecuritySchemeProps: spec3.SecuritySchemeProps{Type: "apiKey", Name: schemeHeader, In: "header", Description: schemeText},
	}
	c.SecuritySchemes = spec3.SecuritySchemes{scheme: token}
	c.DefaultSecurity = []map[string][]string{{scheme: {}}}
	c.CommonResponses = map[int]*spec3.Response{
		http.StatusUnauthorized: {ResponseProps: spec3.ResponseProps{Description: unauthorized}},
	}
}
