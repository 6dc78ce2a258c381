// Package aggregatedtest owns an API server of somebody else for tests: upstream's generic server with one kind, kept in
// memory, which knows its clients as aggregated servers do. It reads from the cluster whom to believe (the ConfigMap
// kube-system/extension-apiserver-authentication) and asks the cluster who may do what (SubjectAccessReview). Nothing of
// the product imports it.
//
// A server is stopped, and waited for, when its test ends.
package aggregatedtest
