// Package ingress owns the way from outside the cluster to its Services by HTTP: the ports 80 and 443 of the nodes that
// serve, for Ingress (networking.k8s.io/v1) of class controller balsa.dev/ingress, and for Gateway and HTTPRoute
// (gateway.networking.k8s.io/v1) of class controller balsa.dev/gateway where their definitions are installed.
//
//	Ingresses, classes ──────────┐               ┌─► plan.Build ─► proxy.Apply         (Node, on every node that serves)
//	Gateways, routes, grants ────┼─► source ─────┤   EndpointSlices ─► proxy.SetEndpoints
//	Secrets, each by its name ───┘   "changed"   └─► plan.Build ─► status, Events      (Status, once in the cluster)
//
// Node serves and writes nothing but Events about ports it could not open. Status is the one writer of addresses and
// conditions, and runs where the controllers run; both make the same plan from the same objects.
//
// Which nodes serve: those with the label balsa.dev/ingress=true or, when no node has it, all but those with
// balsa.dev/ingress=false.
//
// Until there is an Ingress or a Gateway of ours, a node watches Ingresses, IngressClasses and the names of
// CustomResourceDefinitions, which are few; nothing listens. The Gateway API's kinds are watched from when their
// definitions are there. A Secret is watched by its name, and only when an Ingress or a Gateway names it: the API lets a
// node read no others.
//
// Goroutines: one engine for Node and one for Status, which alone make plans and bring them into force; those of the
// informers, one more per Secret. Handlers only tell the engine that something changed; it waits a moment for more.
// Run joins all of them. source and secrets have a lock each, held for map operations only.
package ingress
