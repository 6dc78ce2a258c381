package healthport

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// portOf returns the Service's health check node port; 0 if it has none.
func portOf(svc *v1.Service) int32 {
	if svc == nil || svc.Spec.Type != v1.ServiceTypeLoadBalancer || svc.Spec.ExternalTrafficPolicy != v1.ServiceExternalTrafficPolicyLocal {
		return 0
	}
	return svc.Spec.HealthCheckNodePort
}

// countLocal returns how many ready endpoints the node has. An endpoint with several ports, or with addresses of both families,
// counts once.
func countLocal(list []*discovery.EndpointSlice, node string) int {
	most := 0
	byFamily := map[discovery.AddressType][]string{}
	for _, s := range list {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if e.NodeName != nil && *e.NodeName == node && (e.Conditions.Ready == nil || *e.Conditions.Ready) && len(e.Addresses) > 0 {
				byFamily[s.AddressType] = append(byFamily[s.AddressType], e.Addresses[0])
			}
		}
	}
	for _, addresses := range byFamily {
		slices.Sort(addresses)
		most = max(most, len(slices.Compact(addresses)))
	}
	return most
}

// answer is the handler for one Service.
type answer struct {
	key     types.NamespacedName
	local   atomic.Int64
	healthy func() bool
}

// ServeHTTP implements http.Handler with kube-proxy's answer.
func (a *answer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	n, healthy := a.local.Load(), a.healthy()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(n, 10))
	if n == 0 || !healthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintf(w, "{\n\t\"service\": {\n\t\t\"namespace\": %q,\n\t\t\"name\": %q\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}",
		a.key.Namespace, a.key.Name, n, healthy)
}
