// Package admission owns the chain of plugins a write passes between authorization and the registry: upstream's
// plugins that are on by default, in upstream's order, and NoEffect, which is ours.
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
// Upstream's other plugins that bring no controller along are off unless Settings enable them, each in upstream's place of
// the order (optional.go); Settings may take any out, and configure those that have a configuration (settings.go).
//
// PodPreset comes after NamespaceLifecycle, Initializers after MutatingAdmissionWebhook, where they are asked for.
//
// BalsaNodeClaims is ours: a node chooses neither its pod network nor an address that is somebody else's.
//
// ResourceQuota is asked about namespaces that have a quota.
//
// Plugins read through package live: no informer runs, nothing has to sync before the API is ready. The exception is
// admission policies, whose plugins need informers of their own; those start with the first policy.
//
// Goroutines: ResourceQuota's evaluators, the policies' informers and, after the first PodPreset that was in conflict with
// a pod, what writes events, all ended by the stop function New returns.
package admission
