// Package aggregatedtest owns a foreign API server for tests: upstream's generic server with one kind, kept in memory.
// It authenticates and authorizes as aggregated servers do: it reads from the cluster which proxies to trust (the
// ConfigMap kube-system/extension-apiserver-authentication), and sends SubjectAccessReviews. The product does not
// import this package.
//
// A server is stopped and joined when its test ends.
package aggregatedtest
