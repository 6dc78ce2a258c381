// Package bootstrap owns the objects every cluster starts with: the system namespaces, upstream's default RBAC roles and
// bindings, and the system priority classes.
//
// They are reconciled as kube-apiserver does at each start: what is missing is made, what has lost permissions gets
// them back, what carries rbac.authorization.kubernetes.io/autoupdate: "false" is left alone. Unlike there, everything
// is listed once, compared in memory, and written in parallel, so that an empty store is filled in one burst of
// grouped writes.
package bootstrap
