// Package authz owns the answer to "may this user do that": system:masters, then the Node authorizer, then RBAC.
//
//	request ──▶ system:masters ──▶ Node (system:nodes) ──▶ RBAC ──▶ no opinion = denied
//	                                    │                    │
//	                                    └──── live listers ──┘  the store's newest state, so that a binding
//	                                                            counts from the next request on
//
// No goroutines. Locks: Node.mu guards the extracts of pods (which node, which objects they refer to).
package authz
