// Package initializers owns Initializers: programs outside the API server that finish new objects before anybody else
// sees them. Kubernetes had them as an alpha feature from v1.7 to v1.13, whose behaviour this is.
//
//	client ──create──▶ admission: which names must finish it ──▶ Hide ──▶ storage
//	   ▲                                                          │ waits
//	   └───────── the finished object, or a reason ◀──────────────┘ until no name is left
//	                                                              ▲
//	initializer ──list, watch with ?includeUninitialized=true─────┤
//	            ──update: does its part, removes its name─────────┘
//
//	Configuration  which initializers finish which resources; Definition is how the API serves the kind
//	State          what an object still waits for: its annotation Annotation
//	Hide           a storage that keeps such objects out of lists and watches, and lets their creation wait
//	Filter         says of each request whether it sees them
//	PodStrategy    what an initializer may change in a pod
//
// The list of pending names was metadata.initializers, a field that objects of today have no more. It is kept in an
// annotation, with the field's JSON as its value, and written by the same rules: whoever may "initialize" the resource.
// Clients that speak JSON find it as metadata.initializers too, and may write it there (take.go, show.go); those that
// speak protobuf, YAML or server-side apply use the annotation.
//
// Everything but Hide and Filter is a function of values. control/auth/admission has the plug-in that decides about
// writes; control puts the parts together when control.Config.Initializers is set. Without it nothing of this is in any
// request's way, and the annotation means nothing.
//
// Goroutines: none of its own; a creation that waits holds one watch of its key. No locks.
package initializers
