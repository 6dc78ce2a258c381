package fields

// containers is the path of all containers of a pod.
const containers = "spec.{containers,initContainers,ephemeralContainers}[*]"

// rules is the table of fields without effect. A field that upstream's suites, Helm charts or common manifests set
// causes a warning and not a refusal.
var rules = []Rule{
	// Pods: what would run without what it asks for.
	{Kind: "Pod", Path: "spec.schedulingGroup", Does: Refused,
		Says: "pods are not scheduled in groups (upstream: the alpha feature GenericWorkload, which is off); leave it out"},
	{Kind: "Pod", Path: "spec.volumes[*].projected.sources[*].clusterTrustBundle", Does: Refused,
		Says: "ClusterTrustBundles are not served (upstream: a beta feature which is off); use a configMap source with the certificates"},
	{Kind: "Pod", Path: "spec.volumes[*].projected.sources[*].podCertificate", Does: Refused,
		Says: "certificates for pods are not issued (upstream: a beta feature which is off); use a secret, or a CertificateSigningRequest of the pod's own"},
	{Kind: "Pod", Path: containers + ".lifecycle.stopSignal", Does: Refused,
		Says: "the image's stop signal is sent (upstream: the alpha feature ContainerStopSignals, which is off); set STOPSIGNAL in the image, or use a preStop hook"},

	// Pods: what starts, and lacks something.
	{Kind: "Pod", Path: "spec.securityContext.seLinuxChangePolicy", Does: Said,
		Says: "volumes are neither relabelled nor mounted with a label"},
	{Kind: "Pod", Path: "spec.securityContext.windowsOptions", Does: Said, Says: "nodes run Linux"},
	{Kind: "Pod", Path: containers + ".securityContext.windowsOptions", Does: Said, Says: "nodes run Linux"},
	{Kind: "Pod", Path: "spec.volumes[*].{awsElasticBlockStore,azureDisk,azureFile,cephfs,cinder,fc,flexVolume,flocker,gcePersistentDisk,gitRepo," +
		"glusterfs,iscsi,nfs,photonPersistentDisk,portworxVolume,quobyte,rbd,scaleIO,storageos,vsphereVolume}", Does: Said,
		Says: "no node can mount this kind of volume: the pod will not start; use a claim, of the class balsa-local or of a CSI driver that you install"},

	// Workloads.
	{Kind: "StatefulSet", Path: "spec.updateStrategy.rollingUpdate.maxUnavailable", Does: Said,
		Says: "one pod is replaced at a time (upstream: the feature MaxUnavailableStatefulSet, which is off)"},

	// Storage.
	{Kind: "PersistentVolume", Path: "spec.{awsElasticBlockStore,azureDisk,azureFile,cephfs,cinder,fc,flexVolume,flocker,gcePersistentDisk," +
		"glusterfs,iscsi,nfs,photonPersistentDisk,portworxVolume,quobyte,rbd,scaleIO,storageos,vsphereVolume}", Does: Said,
		Says: "no node can mount this kind of volume: pods that use it will not start; use csi, with a driver that you install, hostPath or local"},
	{Kind: "PersistentVolume", Path: "spec.mountOptions", Unless: "csi,local", Does: Said, Says: "only volumes of CSI drivers and local ones are mounted with options, others are bound as they are; mount the file system on the node with them"},
	{Kind: "PersistentVolumeClaim", Path: "spec.{dataSource,dataSourceRef}", Does: Said,
		Says: "only a provisioner of your own fills volumes, and the class balsa-local provisions none with a source; a claim bound to a volume that exists keeps that volume's content"},
	{Kind: "CSIDriver", Path: "spec.seLinuxMount", Is: "true", Does: Said, Says: "volumes are not mounted with a label"},
	{Kind: "CSIDriver", Path: "spec.preventPodSchedulingIfMissing", Is: "true", Does: Said,
		Says: "pods are scheduled to nodes without the driver too (upstream: the alpha feature VolumeLimitScaling, which is off), and wait there until it is installed"},
	{Kind: "VolumeAttributesClass", Does: Said, Says: "volumes are not modified: only a resizer of your own acts on this; quotas can count it"},

	// Devices.
	{Kind: "ResourceSlice", Path: "spec.devices[*].nodeAllocatableResourceMappings", Does: Said,
		Says: "devices do not count as resources of their node (upstream: the alpha feature DRANodeAllocatableResources, which is off)"},
	{Kind: "ResourceSlice", Path: "spec.devices[*].attributes[*].{boolValues,intValues,stringValues,versionValues}", Does: Said,
		Says: "lists as attributes (bools, ints, strings, versions) are not kept (upstream: the alpha feature DRAListTypeAttributes, which is off); give one value"},

	// The rest.
	{Kind: "Lease", Path: "spec.{strategy,preferredHolder}", Does: Said,
		Says: "no holder is elected for a lease (upstream: the feature CoordinatedLeaderElection, which is off): the first client that takes it holds it"},
	{Kind: "IngressClass", Path: "spec.parameters", Where: &Beside{Field: "controller", Value: "balsa.dev/ingress"}, Does: Said,
		Says: "this controller has no parameters; see its annotations for Ingresses"},
	{Kind: "Node", Path: "spec.configSource", Does: Said, Says: "a node is configured by its own flags and files (upstream took it out in 1.24)"},
}

// Rules returns the table, for the test and for documents.
func Rules() []Rule { return rules }
