package control

import (
	"net/http"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"

	"github.com/balsahq/balsa/control/auth/authn"
)

// longRunning are the requests no deadline and no limit in flight applies to.
var longRunning = genericfilters.BasicLongRunningRequestCheck(
	sets.NewString("watch", "proxy"),
	sets.NewString("attach", "exec", "proxy", "log", "portforward"),
)

// chain puts the filters around the API. The first line is the innermost filter.
func chain(api http.Handler, c *genericapiserver.Config) http.Handler {
	h := filters.WithAuthorization(api, c.Authorization.Authorizer, c.Serializer)
	h = limitNetwork(h, c)
	h = impersonation.WithConstrainedImpersonation(h, c.Authorization.Authorizer, c.Serializer)
	h = filters.WithAudit(h, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc)
	h = filters.WithAuthentication(h, c.Authentication.Authenticator, filters.Unauthorized(c.Serializer),
		c.Authentication.APIAudiences, c.Authentication.RequestHeaderConfig)
	h = genericfilters.WithCORS(h, c.CorsAllowedOriginList, nil, nil, nil, "true")
	// Warnings are collected inside the timeout filter, which makes writing headers safe.
	h = filters.WithWarningRecorder(h)
	h = genericfilters.WithTimeoutForNonLongRunningRequests(h, c.LongRunningFunc)
	h = filters.WithRequestDeadline(h, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc, c.Serializer, c.RequestTimeout)
	h = filters.WithCacheControl(h)
	h = genericfilters.WithHSTS(h, c.HSTSDirectives)
	h = filters.WithLatencyTrackers(h)
	h = filters.WithRequestInfo(h, c.RequestInfoResolver)
	h = filters.WithRequestReceivedTimestamp(h)
	h = genericfilters.WithPanicRecovery(h, c.RequestInfoResolver)
	return filters.WithAuditInit(h)
}

// limitNetwork bounds what network clients may have in flight. The cluster's own controllers come from inside the
// process and are not held up by a crowd outside.
func limitNetwork(h http.Handler, c *genericapiserver.Config) http.Handler {
	limited := genericfilters.WithMaxInFlightLimit(h, c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight, c.LongRunningFunc)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, inside := authn.Identity(r.Context()); inside {
			h.ServeHTTP(w, r)
			return
		}
		limited.ServeHTTP(w, r)
	})
}
