package control

import (
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"

	"github.com/balsahq/balsa/control/auth/authn"
	"github.com/balsahq/balsa/control/limits"
	"github.com/balsahq/balsa/raftstore/peer"
)

// pathLog is a path of Config.Debug whose answer a client may follow.
const pathLog = "/balsa/log"

// longRunning reports whether no deadline and no limit of concurrent requests applies: the result of upstream's
// BasicLongRunningRequestCheck for kube-apiserver's verbs and subresources. Seven filters call it.
func longRunning(_ *http.Request, info *apirequest.RequestInfo) bool {
	switch info.Verb {
	case "watch", "proxy":
		return true
	}
	if !info.IsResourceRequest {
		return strings.HasPrefix(info.Path, "/debug/pprof/") || info.Path == pathLog
	}
	switch info.Subresource {
	case "attach", "exec", "proxy", "log", "portforward":
		return true
	}
	return false
}

// handlerChain puts the filters around the API.
func (s *Server) handlerChain(api http.Handler, c *genericapiserver.Config) http.Handler {
	return s.handlerChainWith(s.fastReads, api, c)
}

// fastReads answers reads from stored bytes where possible. With initializers it answers none, because then some objects
// are hidden and others are shown differently from their stored bytes.
func (s *Server) fastReads(next http.Handler) http.Handler {
	if s.cfg.Initializers {
		return next
	}
	return s.notForOldVersions(s.fastReader.Before(next), next)
}

// handlerChainWith is chain with reads, which may answer a request in place of the handler it is given. The first line is the
// innermost filter.
func (s *Server) handlerChainWith(reads func(http.Handler) http.Handler, api http.Handler, c *genericapiserver.Config) http.Handler {
	api = s.convertOldVersions(s.initializerFilter(api))
	h := byOrigin(limits.Broad(limits.Nested(s.refuseCustomProtobuf(api), maxBody, c.Serializer), maxBody, c.Serializer), api)
	h = s.aggregation.Before(limits.Named(withoutLocalCompression(reads(h)), c.Serializer))
	h = filters.WithAuthorization(h, c.Authorization.Authorizer, c.Serializer)
	// A small body is read before its request takes a seat.
	h = byOrigin(limits.ReadFirst(s.priorityAndFairness.Fair(h, c.LongRunningFunc), c.Serializer), h)
	h = impersonation.WithConstrainedImpersonation(h, c.Authorization.Authorizer, c.Serializer)
	h = byOrigin(limits.Connections(s.watches.Bound(h), peer.Proved, c.Serializer), h)
	h = filters.WithAudit(h, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc)
	failed := filters.WithFailedAuthenticationAudit(filters.Unauthorized(c.Serializer), c.AuditBackend, c.AuditPolicyRuleEvaluator)
	h = filters.WithAuthentication(h, c.Authentication.Authenticator, failed, c.Authentication.APIAudiences, c.Authentication.RequestHeaderConfig)
	h = genericfilters.WithCORS(h, c.CorsAllowedOriginList, nil, nil, nil, "true")
	// Warnings are collected inside the timeout filter, which makes writing headers safe.
	h = filters.WithWarningRecorder(h)
	// The timeout filter has a goroutine of its own do the rest.
	h = byOrigin(genericfilters.WithTimeoutForNonLongRunningRequests(h, c.LongRunningFunc), h)
	h = filters.WithRequestDeadline(h, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc, c.Serializer, c.RequestTimeout)
	h = filters.WithCacheControl(h)
	h = genericfilters.WithHSTS(h, c.HSTSDirectives)
	h = filters.WithLatencyTrackers(h)
	h = byOrigin(limits.Paced(h, c.LongRunningFunc, limits.DefaultPace), h)
	h = filters.WithRequestInfo(h, c.RequestInfoResolver)
	h = s.moveOldVersions(h)
	h = filters.WithRequestReceivedTimestamp(h)
	h = byOrigin(limits.Short(h, c.Serializer), h)
	h = withPanicRecovery(h, c.RequestInfoResolver)
	return filters.WithAuditInit(h)
}

// byOrigin sends requests of network clients to one handler and those from inside the process to another. So the cluster's
// own controllers do not wait behind network clients. An in-process client also needs no second goroutine for the timeout,
// because its context's deadline ends the handler.
func byOrigin(outside, inside http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := authn.Identity(r.Context()); ok {
			inside.ServeHTTP(w, r)
			return
		}
		outside.ServeHTTP(w, r)
	})
}
