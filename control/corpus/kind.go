package corpus

import (
	"slices"
	"strings"
)

// Kind is a kind that is served, with the largest object of it that upstream takes.
type Kind struct {
	Group, Version, Kind, Resource string
	Namespaced                     bool
	Verbs                          []string
	Subresources                   []string // "status", "scale", …
	// Object is JSON without a status, Status an object's status alone; empty when it has none that clients write.
	Object, Status string
	// Name of the object.
	Name string
	// Custom kinds have no protobuf and no strategic patch.
	Custom bool
	// Values is how many values the object and its status have, Wished how many there would be if everything were valid.
	Values, Wished int
}

// Namespace holds all objects of the corpus that are in one.
const Namespace = "corpus"

// APIVersion as objects have it.
func (k Kind) APIVersion() string {
	if k.Group == "" {
		return k.Version
	}
	return k.Group + "/" + k.Version
}

// Path of the collection.
func (k Kind) Path() string {
	root := "/apis/" + k.Group
	if k.Group == "" {
		root = "/api"
	}
	if k.Namespaced {
		return strings.Join([]string{root, k.Version, "namespaces", Namespace, k.Resource}, "/")
	}
	return strings.Join([]string{root, k.Version, k.Resource}, "/")
}

// HasVerb tells whether the kind has a verb.
func (k Kind) HasVerb(verb string) bool { return slices.Contains(k.Verbs, verb) }

// HasSubresource tells whether the kind has a subresource.
func (k Kind) HasSubresource(subresource string) bool {
	return slices.Contains(k.Subresources, subresource)
}

// writtenByServer tells whether the server itself writes to objects of this kind, at its own time.
func (k Kind) writtenByServer() bool {
	switch k.Group {
	case "apiextensions.k8s.io", "apiregistration.k8s.io", "flowcontrol.apiserver.k8s.io":
		return true
	}
	return false
}

// String names the kind.
func (k Kind) String() string { return k.APIVersion() + " " + k.Resource }
