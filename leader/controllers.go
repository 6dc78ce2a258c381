package leader

import (
	"github.com/balsahq/balsa/leader/apiservers"
	"github.com/balsahq/balsa/leader/attachdetach"
	"github.com/balsahq/balsa/leader/certificates"
	"github.com/balsahq/balsa/leader/cloud"
	"github.com/balsahq/balsa/leader/clusterrole"
	"github.com/balsahq/balsa/leader/cronjob"
	"github.com/balsahq/balsa/leader/daemonset"
	"github.com/balsahq/balsa/leader/deployment"
	"github.com/balsahq/balsa/leader/devicetaints"
	"github.com/balsahq/balsa/leader/disruption"
	"github.com/balsahq/balsa/leader/endpoints"
	"github.com/balsahq/balsa/leader/garbage"
	"github.com/balsahq/balsa/leader/horizontalpodautoscaler"
	"github.com/balsahq/balsa/leader/job"
	"github.com/balsahq/balsa/leader/loadbalancer"
	"github.com/balsahq/balsa/leader/localvolumes"
	"github.com/balsahq/balsa/leader/namespace"
	"github.com/balsahq/balsa/leader/nodes"
	"github.com/balsahq/balsa/leader/policystatus"
	"github.com/balsahq/balsa/leader/quota"
	"github.com/balsahq/balsa/leader/replicaset"
	"github.com/balsahq/balsa/leader/resourceclaim"
	"github.com/balsahq/balsa/leader/rootca"
	"github.com/balsahq/balsa/leader/scheduler"
	"github.com/balsahq/balsa/leader/serviceaccount"
	"github.com/balsahq/balsa/leader/servicecidr"
	"github.com/balsahq/balsa/leader/statefulset"
	"github.com/balsahq/balsa/leader/ttl"
	"github.com/balsahq/balsa/leader/volumes"
	"github.com/balsahq/balsa/leader/workqueue"
)

const (
	userScheduler    = "system:kube-scheduler"
	userCertificates = "system:serviceaccount:kube-system:certificate-controller"
)

// row is a controller that runs in a term.
type row struct {
	name    string // also the service account in kube-system it acts as
	user    string // the user name, if it does not act as the service account
	watches []string
	writes  []part
	workers int
	later   bool              // starts after the shared caches are filled, because it reads much and no user waits for it
	off     func(Config) bool // reports whether the configuration turns it off; nil: it always runs
	build   func(s *scope, env workqueue.Env, workers int) (workqueue.Runner, error)
}

// part is a kind of object, or a part of its objects, that exactly one row writes.
type part struct {
	kind  string
	which string // empty: all objects and all of their fields
}

// plain adapts constructors whose only argument is an environment.
func plain(f func(workqueue.Env, int) (workqueue.Runner, error)) func(*scope, workqueue.Env, int) (workqueue.Runner, error) {
	return func(_ *scope, env workqueue.Env, workers int) (workqueue.Runner, error) { return f(env, workers) }
}

// controllers is the table of everything that runs once in the cluster, in starting order: controllers that new namespaces
// and new nodes need come first.
var controllers = []row{
	{
		name: "apiserver-endpoints", user: "system:serviceaccount:kube-system:endpoint-controller", workers: 1,
		watches: []string{"endpoints", "who serves the API"},
		writes:  []part{{"endpoints", "of the kubernetes Service"}},
		off:     func(c Config) bool { return c.APIServers.List == nil },
		build: func(s *scope, env workqueue.Env, _ int) (workqueue.Runner, error) {
			return apiservers.NewEndpoints(env, s.cfg.APIServers)
		},
	},
	{
		name: "apiserver-endpointslices", user: "system:serviceaccount:kube-system:endpointslice-controller", workers: 1,
		watches: []string{"endpointslices", "who serves the API"},
		writes:  []part{{"endpointslices", "of the kubernetes Service"}},
		off:     func(c Config) bool { return c.APIServers.List == nil },
		build: func(s *scope, env workqueue.Env, _ int) (workqueue.Runner, error) {
			return apiservers.NewSlices(env, s.cfg.APIServers)
		},
	},
	{
		name: "service-account-controller", workers: 2,
		watches: []string{"namespaces", "serviceaccounts"},
		writes:  []part{{"serviceaccounts", "default"}},
		build:   plain(serviceaccount.New),
	},
	{
		name: "root-ca-cert-publisher", workers: 2,
		watches: []string{"namespaces", "configmaps named kube-root-ca.crt"},
		writes:  []part{{"configmaps", "kube-root-ca.crt"}},
		off:     func(c Config) bool { return c.Keys.RootCA == nil },
		build: func(s *scope, env workqueue.Env, workers int) (workqueue.Runner, error) {
			return rootca.New(env, workers, s.cfg.Keys)
		},
	},
	{
		name: "node-ipam-controller", user: "system:serviceaccount:kube-system:node-controller", workers: 1,
		watches: []string{"nodes"},
		writes:  []part{{"nodes", "spec.podCIDR"}},
		off:     func(c Config) bool { return !c.ClusterCIDR.IsValid() },
		build: func(s *scope, env workqueue.Env, _ int) (workqueue.Runner, error) {
			return nodes.NewRanges(env, s.cfg.ranges()...)
		},
	},
	{
		name: "node-controller", workers: 4,
		watches: []string{"nodes", "leases in kube-node-lease", "pods"},
		writes:  []part{{"nodes", "spec.taints by condition"}, {"nodes/status", "of silent nodes"}, {"pods/status", "readiness on silent nodes"}},
		build: func(s *scope, env workqueue.Env, workers int) (workqueue.Runner, error) {
			return nodes.NewLifecycle(env, workers, nodes.LifecycleConfig{Grace: s.cfg.NodeGrace, Liveness: s.cfg.NodeLiveness})
		},
	},
	{
		name: "taint-eviction-controller", user: "system:serviceaccount:kube-system:node-controller", workers: 4,
		watches: []string{"nodes", "pods"},
		writes:  []part{{"pods", "deletes by NoExecute taint"}},
		build:   plain(nodes.NewEviction),
	},
	{
		name: "pod-garbage-collector", workers: 1,
		watches: []string{"nodes", "pods"},
		writes:  []part{{"pods", "deletes of lost nodes"}},
		build: func(s *scope, env workqueue.Env, _ int) (workqueue.Runner, error) {
			return nodes.NewCollector(env, s.cfg.MaxEndedPods)
		},
	},
	{
		name: "kube-scheduler", user: userScheduler, workers: 1,
		watches: []string{"pods", "nodes", "and what its rules ask for"},
		writes: []part{
			{"pods/binding", ""}, {"pods/status", "PodScheduled, nominatedNodeName and extendedResourceClaimStatus"}, {"pods", "deletes of preempted ones"},
			{"resourceclaims/status", "allocates and reserves"}, {"resourceclaims", "the finalizer, and those of extended resources"},
		},
		build: func(s *scope, env workqueue.Env, _ int) (workqueue.Runner, error) {
			return scheduler.New(scheduler.Config{Client: env.Client, Informers: env.Informers, Logger: env.Log, Settings: s.cfg.Scheduler})
		},
	},
	{
		name: "replicaset-controller", workers: 5,
		watches: []string{"replicasets", "pods"},
		writes:  []part{{"replicasets/status", ""}, {"pods", "controlled by a ReplicaSet"}},
		build:   plain(replicaset.New),
	},
	{
		name: "replication-controller", workers: 2,
		watches: []string{"replicationcontrollers", "pods"},
		writes:  []part{{"replicationcontrollers/status", ""}, {"pods", "controlled by a ReplicationController"}},
		build:   plain(replicaset.NewReplicationController),
	},
	{
		name: "deployment-controller", workers: 5,
		watches: []string{"deployments", "replicasets", "pods"},
		writes:  []part{{"deployments/status", ""}, {"replicasets", "controlled by a Deployment"}},
		build:   plain(deployment.New),
	},
	{
		name: "daemon-set-controller", workers: 2,
		watches: []string{"daemonsets", "pods", "nodes", "controllerrevisions"},
		writes:  []part{{"daemonsets/status", ""}, {"pods", "controlled by a DaemonSet"}, {"controllerrevisions", "controlled by a DaemonSet"}},
		build:   plain(daemonset.New),
	},
	{
		name: "statefulset-controller", workers: 5,
		watches: []string{"statefulsets", "pods", "persistentvolumeclaims", "controllerrevisions"},
		writes:  []part{{"statefulsets/status", ""}, {"pods", "controlled by a StatefulSet"}, {"controllerrevisions", "controlled by a StatefulSet"}, {"persistentvolumeclaims", "of StatefulSets"}},
		build:   plain(statefulset.New),
	},
	{
		name: "job-controller", workers: 5,
		watches: []string{"jobs", "pods"},
		writes:  []part{{"jobs/status", ""}, {"pods", "controlled by a Job"}},
		build:   plain(job.New),
	},
	{
		name: "cronjob-controller", workers: 2,
		watches: []string{"cronjobs", "jobs"},
		writes:  []part{{"cronjobs/status", ""}, {"jobs", "controlled by a CronJob"}},
		build:   plain(cronjob.New),
	},
	{
		name: "ttl-after-finished-controller", workers: 2,
		watches: []string{"jobs"},
		writes:  []part{{"jobs", "deletes of ended ones past their time to live"}},
		build:   plain(ttl.New),
	},
	{
		name: "horizontal-pod-autoscaler", workers: 5,
		watches: []string{"horizontalpodautoscalers", "pods", "metrics, by asking"},
		writes:  []part{{"horizontalpodautoscalers/status", ""}, {"scale", "of HorizontalPodAutoscalers' targets"}},
		build: func(s *scope, env workqueue.Env, workers int) (workqueue.Runner, error) {
			return horizontalpodautoscaler.New(env, workers, s.cfg.Autoscaling)
		},
	},
	{
		name: "disruption-controller", workers: 2,
		watches: []string{"poddisruptionbudgets", "pods", "replicasets"},
		writes:  []part{{"poddisruptionbudgets/status", ""}},
		build:   plain(disruption.New),
	},
	{
		name: "resourcequota-controller", workers: 3,
		watches: []string{"resourcequotas", "pods", "services", "persistentvolumeclaims", "the metadata of what quotas count"},
		writes:  []part{{"resourcequotas/status", ""}},
		build:   plain(quota.New),
	},
	{
		name: "persistent-volume-binder", workers: 1,
		watches: []string{"persistentvolumeclaims", "persistentvolumes", "storageclasses"},
		writes: []part{
			{"persistentvolumeclaims", "spec.volumeName, and the default class of those without one"}, {"persistentvolumeclaims/status", "phase, accessModes and the first capacity"},
			{"persistentvolumes", "spec.claimRef and deletes of released ones"}, {"persistentvolumes/status", ""},
		},
		build: func(_ *scope, env workqueue.Env, _ int) (workqueue.Runner, error) { return volumes.NewBinder(env) },
	},
	{
		name: "attachdetach-controller", workers: 10,
		watches: []string{"pods", "nodes", "persistentvolumeclaims", "persistentvolumes", "csidrivers", "volumeattachments"},
		writes:  []part{{"volumeattachments", "of volumes that pods use"}, {"nodes/status", "volumesAttached"}},
		build:   plain(attachdetach.New),
	},
	{
		name: "expand-controller", workers: 1,
		watches: []string{"persistentvolumeclaims", "persistentvolumes"},
		writes:  []part{{"events", "of claims that wait for a resizer"}},
		build:   plain(volumes.NewExpansion),
	},
	{
		name: "local-volume-provisioner", workers: 8,
		watches: []string{"persistentvolumeclaims", "persistentvolumes", "nodes", "storageclasses", "csidrivers", "csinodes", "csistoragecapacities"},
		writes: []part{
			{"persistentvolumes", "provisioned by csi.balsa.dev: spec.capacity and the provisioner's finalizer"}, {"persistentvolumeclaims", "takes back the selected node"},
			{"persistentvolumeclaims/status", "sizes, of csi.balsa.dev"}, {"csistoragecapacities", "of csi.balsa.dev"},
			{"storageclasses", "balsa-local, once"}, {"csidrivers", "csi.balsa.dev"},
		},
		off:   func(c Config) bool { return c.DisableLocalStorage },
		build: plain(localvolumes.New),
	},
	{
		name: "ephemeral-volume-controller", workers: 2,
		watches: []string{"pods", "persistentvolumeclaims"},
		writes:  []part{{"persistentvolumeclaims", "of pods' ephemeral volumes"}},
		build:   plain(volumes.NewEphemeral),
	},
	{
		name: "pvc-protection-controller", workers: 2,
		watches: []string{"persistentvolumeclaims", "pods"},
		writes:  []part{{"persistentvolumeclaims", "the finalizer pvc-protection"}},
		build:   plain(volumes.NewClaimProtection),
	},
	{
		name: "pv-protection-controller", workers: 1,
		watches: []string{"persistentvolumes"},
		writes:  []part{{"persistentvolumes", "the finalizer pv-protection"}},
		build:   plain(volumes.NewVolumeProtection),
	},
	{
		name: "volumeattributesclass-protection-controller", workers: 1,
		watches: []string{"volumeattributesclasses", "persistentvolumeclaims", "persistentvolumes"},
		writes:  []part{{"volumeattributesclasses", "the finalizer vac-protection"}},
		build:   plain(volumes.NewClassProtection),
	},
	{
		name: "resource-claim-controller", workers: 10,
		watches: []string{"pods", "resourceclaims", "resourceclaimtemplates"},
		writes: []part{
			{"resourceclaims", "of templates, and deletes of pods that ended"}, {"resourceclaims/status", "takes back reservations and allocations"},
			{"pods/status", "resourceClaimStatuses"},
		},
		build: plain(resourceclaim.New),
	},
	{
		name: "device-taint-eviction-controller", workers: 8,
		watches: []string{"pods", "resourceclaims", "resourceslices"},
		writes:  []part{{"pods", "deletes by taint of a device"}},
		build:   plain(devicetaints.New),
	},
	{
		name: "cloud-node-controller", user: "system:serviceaccount:kube-system:node-controller", workers: 4,
		watches: []string{"nodes"},
		writes: []part{
			{"nodes", "spec.providerID, zone labels and the taints of providers"}, {"nodes/status", "addresses, as initialized"},
			{"nodes", "deletes of those without a machine"},
		},
		off: func(c Config) bool { return c.DisableCloud || c.Cloud.Instances == nil },
		build: func(s *scope, env workqueue.Env, workers int) (workqueue.Runner, error) {
			return cloud.NewNodes(env, workers, s.cfg.Cloud.Instances)
		},
	},
	{
		name: "node-route-controller", user: "system:serviceaccount:kube-system:route-controller", workers: 1,
		watches: []string{"nodes"},
		writes:  []part{{"nodes/status", "NetworkUnavailable"}},
		off:     func(c Config) bool { return c.DisableCloud || c.Cloud.Routes == nil },
		build: func(s *scope, env workqueue.Env, _ int) (workqueue.Runner, error) {
			return cloud.NewRoutes(env, s.cfg.Cloud.Routes)
		},
	},
	{
		name: "service-cidrs-controller", workers: 1,
		watches: []string{"servicecidrs", "services", "nodes"},
		writes:  []part{{"servicecidrs", "the finalizer service-cidr-finalizer"}, {"servicecidrs/status", "Ready"}},
		build: func(s *scope, env workqueue.Env, workers int) (workqueue.Runner, error) {
			return servicecidr.New(env, workers, s.cfg.podNetworks())
		},
	},
	{
		name: "service-lb-controller", user: "system:serviceaccount:kube-system:service-controller", workers: 1,
		watches: []string{"services", "nodes", "the configmap balsa-load-balancer"},
		writes:  []part{{"services/status", "loadBalancer, the condition PoolAddress and the clean-up finalizer"}},
		build: func(s *scope, env workqueue.Env, _ int) (workqueue.Runner, error) {
			if lb := s.cfg.Cloud.LoadBalancers; lb != nil {
				return cloud.NewServices(env, lb)
			}
			return loadbalancer.New(env, s.cfg.LoadBalancer)
		},
	},
	{
		name: "endpoint-controller", workers: 5,
		watches: []string{"services", "pods", "endpoints"},
		writes:  []part{{"endpoints", "of Services with a selector"}},
		build:   plain(endpoints.New),
	},
	{
		name: "endpointslice-controller", workers: 5,
		watches: []string{"services", "pods", "nodes", "endpointslices"},
		writes:  []part{{"endpointslices", "of Services with a selector"}},
		build:   plain(endpoints.NewSlices),
	},
	{
		name: "endpointslicemirroring-controller", workers: 2,
		watches: []string{"services", "endpoints", "endpointslices"},
		writes:  []part{{"endpointslices", "of Endpoints people wrote"}},
		build:   plain(endpoints.NewMirror),
	},
	{
		name: "ingress-status-controller", workers: 1, later: true,
		watches: []string{"ingresses", "ingressclasses", "services", "nodes", "the Gateway API's kinds where they are defined", "the Secrets these name"},
		writes: []part{
			{"ingresses/status", "of balsa.dev/ingress"}, {"gatewayclasses/status", "of balsa.dev/gateway"}, {"gateways/status", "of balsa.dev/gateway"},
			{"httproutes/status", "of our Gateways"}, {"grpcroutes/status", "of our Gateways"},
		},
		off:   func(c Config) bool { return c.IngressStatus == nil },
		build: func(s *scope, env workqueue.Env, _ int) (workqueue.Runner, error) { return s.cfg.IngressStatus(env) },
	},
	{
		name: "namespace-controller", workers: 8,
		watches: []string{"namespaces", "pods"},
		writes:  []part{{"namespaces/status", ""}, {"namespaces/finalize", ""}, {"everything", "in ending namespaces"}},
		build:   plain(namespace.New),
	},
	{
		name: "generic-garbage-collector", workers: 10, later: true,
		watches: []string{"the metadata of everything"},
		writes:  []part{{"everything", "owner references that lead nowhere, and objects without an owner left"}},
		build:   plain(garbage.New),
	},
	{
		name: "tokens-controller", user: userManager, workers: 2,
		watches: []string{"serviceaccounts", "secrets of type service-account-token"},
		writes:  []part{{"secrets", "of type service-account-token"}},
		off:     func(c Config) bool { return c.SignToken == nil },
		build: func(s *scope, env workqueue.Env, workers int) (workqueue.Runner, error) {
			return serviceaccount.NewTokens(env, workers, s.cfg.SignToken, s.cfg.Keys)
		},
	},
	{
		name: "legacy-tokens-controller", user: userManager, workers: 1,
		watches: []string{"serviceaccounts"},
		writes:  []part{{"secrets", "new ones of type service-account-token"}, {"serviceaccounts", "secrets"}},
		off:     func(c Config) bool { return !c.LegacyTokens || c.SignToken == nil },
		build:   plain(serviceaccount.NewSecrets),
	},
	{
		name: "csrapproving", user: userCertificates, workers: 2,
		watches: []string{"certificatesigningrequests"},
		writes:  []part{{"certificatesigningrequests/approval", "of nodes' client certificates"}},
		build:   plain(certificates.NewApprover),
	},
	{
		name: "csrsigning", user: userCertificates, workers: 2,
		watches: []string{"certificatesigningrequests"},
		writes:  []part{{"certificatesigningrequests/status", "certificates of the signers kubernetes.io/…, and the condition Failed"}},
		off:     func(c Config) bool { return c.Certificates.Sign == nil },
		build: func(s *scope, env workqueue.Env, workers int) (workqueue.Runner, error) {
			return certificates.NewSigner(env, workers, s.cfg.Certificates)
		},
	},
	{
		name: "csrcleaner", user: userCertificates, workers: 1,
		watches: []string{"certificatesigningrequests"},
		writes:  []part{{"certificatesigningrequests", "deletes of old ones"}},
		build:   plain(certificates.NewCleaner),
	},
	{
		name: "validatingadmissionpolicy-status-controller", workers: 1,
		watches: []string{"validatingadmissionpolicies"},
		writes:  []part{{"validatingadmissionpolicies/status", "observedGeneration and typeChecking"}},
		build:   plain(policystatus.New),
	},
	{
		name: "clusterrole-aggregation-controller", workers: 2,
		watches: []string{"clusterroles"},
		writes:  []part{{"clusterroles", "rules of aggregated ones"}},
		build:   plain(clusterrole.New),
	},
}
