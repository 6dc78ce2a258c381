// Package authz owns the answer to "may this user do that": system:masters, then those the settings name, which are the
// Node authorizer and RBAC when they name nobody.
//
//	request ──▶ system:masters ──▶ Node (system:nodes) ──▶ RBAC ──▶ no opinion = denied
//	                                    │                    │
//	                                    └──── live listers ──┘  the store's newest state, so that a binding
//	                                                            counts from the next request on
//	            by settings: ABAC (a file of policies) · Webhook (SubjectAccessReview) · AlwaysAllow · AlwaysDeny
//
// The controllers and nodes of this process are asked for like everybody else: settings without Node and RBAC have to let
// them do their work in another way.
//
// Goroutines: Run follows the configuration's file. Locks: Node.mu guards the extracts of pods (which node, which objects
// they refer to); the chain in use is swapped whole.
package authz
