// Package apiservers keeps the endpoints of the Service default/kubernetes: where the API is served now.
//
//	servers' records ─▶ Endpoints kubernetes          for clients that read nothing newer
//	               └──▶ EndpointSlices of kubernetes  for the nodes' service routing
//
// A server that is gone leaves them as soon as the source says so, one whose address changed follows, and an edit by hand
// is undone. There is one writer, under the term; a server writes them itself only to have them at all, when it seeds an
// empty cluster. An empty answer of the source changes nothing, because at least the server with this process is up.
//
// Goroutines: the worker of a work loop and one that follows the source, for each of the two controllers.
package apiservers
