// Package authz owns authorization: system:masters is always allowed, then the authorizers of the settings decide, by
// default the Node authorizer and RBAC.
//
//	request ──▶ system:masters ──▶ Node (system:nodes) ──▶ RBAC ──▶ no opinion = denied
//	                                    │                    │
//	                                    └──── live listers ──┘  the store's newest state, so that a binding
//	                                                            counts from the next request on
//	            by settings: ABAC (a file of policies) · Webhook (SubjectAccessReview) · AlwaysAllow · AlwaysDeny
//
// The controllers and nodes of this process are authorized like all other clients. Settings without Node and RBAC have
// to allow their requests in another way.
//
// Goroutines: Run follows the configuration's file. Locks: Node.mu guards the extracts of pods (their node and the
// objects they refer to). The chain in use is replaced as a whole.
package authz
