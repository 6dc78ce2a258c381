package config

// KubernetesVersion is the API that is served.
const KubernetesVersion = "v1.36.3"
