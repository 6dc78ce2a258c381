// Package admission owns the chain of plugins a write passes between authorization and the registry: upstream's
// plugins that are on by default, in upstream's order.
//
//	NamespaceLifecycle LimitRanger ServiceAccount NodeRestriction TaintNodesByCondition PodSecurity Priority
//	DefaultTolerationSeconds DefaultStorageClass StorageObjectInUseProtection PersistentVolumeClaimResize RuntimeClass
//	CertificateApproval CertificateSigning ClusterTrustBundleAttest CertificateSubjectRestriction DefaultIngressClass
//	PodTopologyLabels PodResizeValidator
//	  ──▶ MutatingAdmissionPolicy ──▶ MutatingAdmissionWebhook          built when the first configuration of their
//	  ──▶ ValidatingAdmissionPolicy ──▶ ValidatingAdmissionWebhook      kind appears, and asked only while one exists
//	  ──▶ ResourceQuota
//
// Plugins read through package live: no informer runs, nothing has to sync before the API is ready. The exception is
// admission policies, whose plugins need informers of their own; those start with the first policy.
//
// Goroutines: ResourceQuota's evaluators and the policies' informers, all ended by the stop function New returns.
package admission
