// Package admission owns the chain of plugins between authorization and the registry: upstream's plugins that are on by
// default, in upstream's order, and two that are written here (NoEffect and BalsaNodeClaims).
//
//	NamespaceLifecycle LimitRanger ServiceAccount NodeRestriction BalsaNodeClaims TaintNodesByCondition PodSecurity Priority
//	DefaultTolerationSeconds DefaultStorageClass StorageObjectInUseProtection PersistentVolumeClaimResize RuntimeClass
//	CertificateApproval CertificateSigning ClusterTrustBundleAttest CertificateSubjectRestriction DefaultIngressClass
//	PodTopologyLabels PodResizeValidator
//	  ──▶ MutatingAdmissionPolicy ──▶ MutatingAdmissionWebhook          built when the first configuration of their
//	  ──▶ NoEffect                                                      fields that have no effect: package control/fields
//	  ──▶ ValidatingAdmissionPolicy ──▶ ValidatingAdmissionWebhook      kind appears, and asked only while one exists
//	  ──▶ ResourceQuota
//
// Upstream's other plugins that need no controller are off unless Settings enable them. Each has upstream's place in
// the order (optional.go). Settings may switch any plugin off, and configure those that have a configuration
// (settings.go).
//
// When the cluster uses them, PodPreset comes after NamespaceLifecycle, and Initializers after
// MutatingAdmissionWebhook.
//
// BalsaNodeClaims keeps a node from choosing its pod network, or an address that belongs to something else.
//
// ResourceQuota is called only for namespaces that have a quota.
//
// Plugins read through package listers: no informer runs, and nothing has to sync before the API is ready. The
// exception are the plugins of admission policies, which need informers; these start with the first policy.
//
// Goroutines: ResourceQuota's evaluators, the policies' informers and, after the first conflict between a PodPreset and
// a pod, the writer of events. Chain.Stop ends all of them.
package admission
