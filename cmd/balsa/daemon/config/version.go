package config

// KubernetesVersion is the version of the Kubernetes API that is served.
const KubernetesVersion = "v1.36.3"
