package kinds

import "k8s.io/apimachinery/pkg/runtime"

// Group is one API group as discovery shows it.
type Group struct {
	Name     string
	Versions []string // preferred first
	// Priority orders groups in discovery, highest first; the numbers are kube-apiserver's.
	Priority int
}

// Groups are the API groups, in discovery order. The core group is the empty name.
var Groups = []Group{
	{"", []string{"v1"}, 18000},
	{"apiregistration.k8s.io", []string{"v1"}, 20001},
	{"apps", []string{"v1"}, 17800},
	{"events.k8s.io", []string{"v1"}, 17750},
	{"authentication.k8s.io", []string{"v1"}, 17700},
	{"authorization.k8s.io", []string{"v1"}, 17600},
	{"autoscaling", []string{"v2", "v1"}, 17500},
	{"batch", []string{"v1"}, 17400},
	{"certificates.k8s.io", []string{"v1"}, 17300},
	{"networking.k8s.io", []string{"v1"}, 17200},
	{"policy", []string{"v1"}, 17100},
	{"rbac.authorization.k8s.io", []string{"v1"}, 17000},
	{"storage.k8s.io", []string{"v1"}, 16800},
	{"admissionregistration.k8s.io", []string{"v1"}, 16700},
	{"scheduling.k8s.io", []string{"v1"}, 16600},
	{"coordination.k8s.io", []string{"v1"}, 16500},
	{"node.k8s.io", []string{"v1"}, 16300},
	{"discovery.k8s.io", []string{"v1"}, 16200},
	{"resource.k8s.io", []string{"v1"}, 16200},
	{"flowcontrol.apiserver.k8s.io", []string{"v1"}, 16100},
	{"metrics.k8s.io", []string{"v1beta1"}, 100}, // the number that metrics-server's APIService has
}

func ttlFunc(seconds uint64) func(runtime.Object, uint64, bool) (uint64, error) {
	return func(runtime.Object, uint64, bool) (uint64, error) { return seconds, nil }
}
