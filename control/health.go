package control

import (
	"net/http"
	"slices"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
)

// checkDefaultObjects is the check that fails until the objects every cluster has are there.
const checkDefaultObjects = "default-objects"

// startupChecks are the checks by which upstream says that a part of its start is done. Programs ask for them by name. Here the
// parts that do the same are done when the default objects are there, so all of them say what that check says; a server
// whose start is not done is alive, so that /livez and /healthz do not fail for it.
var startupChecks = []string{
	"poststarthook/start-apiserver-admission-initializer", "poststarthook/generic-apiserver-start-informers",
	"poststarthook/start-apiextensions-informers", "poststarthook/start-apiextensions-controllers", "poststarthook/crd-informer-synced",
	"poststarthook/bootstrap-controller", "poststarthook/start-system-namespaces-controller", "poststarthook/start-service-ip-repair-controllers",
	"poststarthook/rbac/bootstrap-roles", "poststarthook/scheduling/bootstrap-system-priority-classes",
	"poststarthook/priority-and-fairness-config-producer", "poststarthook/start-cluster-authentication-info-controller",
	"poststarthook/start-kube-aggregator-informers", "poststarthook/apiservice-registration-controller",
	"poststarthook/apiservice-status-local-available-controller", "poststarthook/apiservice-status-remote-available-controller",
	"poststarthook/apiservice-discovery-controller", "poststarthook/kube-apiserver-autoregistration", "autoregister-completion",
	"poststarthook/apiservice-openapi-controller", "poststarthook/apiservice-openapiv3-controller", "poststarthook/storage-readiness",
}

// addUpstreamChecks adds upstream's names for what is checked. A check of that name that is there already stays. Upstream's
// check of klog is not taken: it keeps a goroutine that flushes a file, and klog writes none here.
func (s *Server) addUpstreamChecks(c *genericapiserver.Config) {
	healthy := func(*http.Request) error { return nil }
	c.HealthzChecks = withCheck(c.HealthzChecks, "log", healthy)
	c.LivezChecks = withCheck(c.LivezChecks, "log", healthy)
	c.ReadyzChecks = withCheck(c.ReadyzChecks, "log", healthy)
	for _, name := range startupChecks {
		c.HealthzChecks = withCheck(c.HealthzChecks, name, healthy)
		c.LivezChecks = withCheck(c.LivezChecks, name, healthy)
	}
	for _, name := range append([]string{"informer-sync"}, startupChecks...) {
		if !hasCheck(c.ReadyzChecks, name) {
			c.ReadyzChecks = withCheck(c.ReadyzChecks, name, s.checkDefaults)
			s.defaultObjectChecks = append(s.defaultObjectChecks, name)
		}
	}
}

func hasCheck(list []healthz.HealthChecker, name string) bool {
	return slices.ContainsFunc(list, func(c healthz.HealthChecker) bool { return c.Name() == name })
}

func withCheck(list []healthz.HealthChecker, name string, check func(*http.Request) error) []healthz.HealthChecker {
	if hasCheck(list, name) {
		return list
	}
	return append(list, healthz.NamedCheck(name, check))
}
