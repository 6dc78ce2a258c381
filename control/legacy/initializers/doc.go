// Package initializers owns Initializers: programs outside the API server that finish new objects before other clients
// see them. Kubernetes had them as an alpha feature from v1.7 to v1.13; the behaviour here is the same.
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
//	Filter         decides for each request whether it sees them
//	PodStrategy    what an initializer may change in a pod
//
// The list of pending names was metadata.initializers, a field that objects no longer have. It is kept in an
// annotation, with the field's JSON as its value. As then, only clients with the right to "initialize" the resource may
// write it. Clients that use JSON see it as metadata.initializers too, and may write it there (request.go, response.go).
// Clients that use protobuf, YAML or server-side apply use the annotation.
//
// Everything except Hide and Filter is a function of values. The plug-in in control/auth/admission decides about
// writes. Package control connects the parts if control.Config.Initializers is set. If it is not set, no request passes
// through this package, and the annotation has no meaning.
//
// No goroutines and no locks; a creation that waits holds one watch of its key.
package initializers
