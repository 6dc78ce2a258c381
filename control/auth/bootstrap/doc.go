// Package bootstrap owns the objects with which every cluster starts: the system namespaces, upstream's default RBAC
// roles and bindings, and the system priority classes.
//
// They are reconciled at each start, as in kube-apiserver: missing objects are created, lost permissions are added
// again, and objects with rbac.authorization.kubernetes.io/autoupdate: "false" are left alone. Unlike in
// kube-apiserver, all objects are listed once, compared in memory, and written in parallel, so that an empty store is
// filled with one burst of grouped writes.
package bootstrap
