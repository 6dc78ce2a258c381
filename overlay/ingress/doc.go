// Package ingress serves HTTP from outside the cluster to its Services, at the ports 80 and 443 of the serving nodes, for
// Ingress (networking.k8s.io/v1) of class controller balsa.dev/ingress, and for Gateway and HTTPRoute
// (gateway.networking.k8s.io/v1) of class controller balsa.dev/gateway where their definitions are installed.
//
//	Ingresses, classes ──────────┐               ┌─► plan.Build ─► proxy.Apply         (Node, on every node that serves)
//	Gateways, routes, grants ────┼─► source ─────┤   EndpointSlices ─► proxy.SetEndpoints
//	Secrets, each by its name ───┘   "changed"   └─► plan.Build ─► status, Events      (Status, once in the cluster)
//
// Node serves, and writes only Events about ports that it could not open. Status is the only writer of addresses and
// conditions, and runs where the controllers run. Both make the same plan from the same objects.
//
// Serving nodes are the nodes with the label balsa.dev/ingress=true or, if no node has it, all nodes without
// balsa.dev/ingress=false.
//
// Until there is an Ingress or a Gateway of these classes, a node watches only Ingresses, IngressClasses and the names of
// CustomResourceDefinitions, and listens nowhere. The Gateway API's kinds are watched once they are defined. A Secret is
// watched by its name, and only if an Ingress or a Gateway names it: the API lets a node read no others.
//
// Goroutines: one engine each for Node and Status, which alone make and apply plans; those of the informers; one per
// Secret. Handlers only wake the engine, which waits a moment for more changes. Run joins all of them. source and secrets
// have a lock each, held for map operations only.
package ingress
