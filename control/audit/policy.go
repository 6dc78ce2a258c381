package audit

import (
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// lenient is a backend whose failures do not fail requests. The backend counts and logs them.
type lenient struct{ audit.Backend }

// ProcessEvents implements audit.Sink.
func (l lenient) ProcessEvents(events ...*auditinternal.Event) bool {
	l.Backend.ProcessEvents(events...)
	return true
}

// defaultPolicy records all writes, and reads of objects that may hold secrets: the user, the request, the time and the source
// address. Changes of RBAC objects are recorded with the body that was sent. Other bodies and other reads are not recorded:
// recording a read adds a fifth to its cost.
func defaultPolicy() *auditinternal.Policy {
	core := func(resources ...string) []auditinternal.GroupResources {
		return []auditinternal.GroupResources{{Resources: resources}}
	}
	reads := []string{"get", "list", "watch"}
	secrets := append(core("secrets", "configmaps", "serviceaccounts/token"),
		auditinternal.GroupResources{Group: "authentication.k8s.io", Resources: []string{"tokenreviews"}})
	noise := append(core("events", "endpoints"), auditinternal.GroupResources{Group: "coordination.k8s.io", Resources: []string{"leases"}},
		auditinternal.GroupResources{Group: "events.k8s.io"}, auditinternal.GroupResources{Group: "discovery.k8s.io", Resources: []string{"endpointslices"}})
	return &auditinternal.Policy{
		OmitStages: []auditinternal.Stage{auditinternal.StageRequestReceived},
		Rules: []auditinternal.PolicyRule{
			{Level: auditinternal.LevelNone, NonResourceURLs: []string{"/healthz*", "/livez*", "/readyz*", "/version", "/openapi*", "/api", "/api/*", "/apis", "/apis/*"}},
			{Level: auditinternal.LevelNone, Resources: noise},
			{Level: auditinternal.LevelNone, Verbs: reads, UserGroups: []string{"system:nodes", "system:serviceaccounts:kube-system"}},
			{Level: auditinternal.LevelNone, Verbs: reads, Users: []string{user.APIServerUser, user.KubeControllerManager, user.KubeScheduler, user.KubeProxy}},
			{Level: auditinternal.LevelMetadata, Resources: secrets},
			{Level: auditinternal.LevelRequest, OmitManagedFields: new(true), Verbs: []string{"create", "update", "patch", "delete", "deletecollection"},
				Resources: []auditinternal.GroupResources{{Group: "rbac.authorization.k8s.io"}}},
			{Level: auditinternal.LevelNone, Verbs: reads},
			{Level: auditinternal.LevelMetadata},
		},
	}
}

// recordsSecrets returns the kinds whose secrets the rules would record.
func recordsSecrets(r audit.PolicyRuleEvaluator) []string {
	var out []string
	for _, a := range []authorizer.AttributesRecord{
		{Resource: "secrets", Verb: "create", Namespace: "default"},
		{Resource: "secrets", Verb: "get", Namespace: "default", Name: "any"},
		{Resource: "serviceaccounts", Subresource: "token", Verb: "create", Namespace: "default", Name: "any"},
		{Resource: "tokenreviews", APIGroup: "authentication.k8s.io", Verb: "create"},
	} {
		a.User, a.APIVersion, a.ResourceRequest = &user.DefaultInfo{Name: "somebody", Groups: []string{user.AllAuthenticated}}, "v1", true
		name := a.Resource
		if a.Subresource != "" {
			name += "/" + a.Subresource
		}
		if bodies(r.EvaluatePolicyRule(&a).Level, a.Verb) && (len(out) == 0 || out[len(out)-1] != name) {
			out = append(out, name)
		}
	}
	return out
}

// bodies reports whether a level records the body that holds the secret: a read has it in the answer, a write in request and
// answer.
func bodies(level auditinternal.Level, verb string) bool {
	return level == auditinternal.LevelRequestResponse || level == auditinternal.LevelRequest && verb != "get"
}
