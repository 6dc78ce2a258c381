package corpus

import (
	"slices"
	"strings"
)

// Kind is a served kind, with the largest object of it that upstream accepts.
type Kind struct {
	Group, Version, Kind, Resource string
	Namespaced                     bool
	Verbs                          []string
	Subresources                   []string // "status", "scale", …
	// Object is JSON without a status. Status is an object's status alone; empty when clients write none.
	Object, Status string
	// Name of the object.
	Name string
	// Custom kinds have no protobuf and no strategic patch.
	Custom bool
	// Values is the number of values in the object and its status. Wished is the number if each field had a valid value.
	Values, Wished int
}

// Namespace is the namespace of all namespaced objects of the corpus.
const Namespace = "corpus"

// APIVersion returns the apiVersion of objects.
func (k Kind) APIVersion() string {
	if k.Group == "" {
		return k.Version
	}
	return k.Group + "/" + k.Version
}

// Path returns the path of the collection.
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

// HasVerb reports whether the kind has a verb.
func (k Kind) HasVerb(verb string) bool { return slices.Contains(k.Verbs, verb) }

// HasSubresource reports whether the kind has a subresource.
func (k Kind) HasSubresource(subresource string) bool {
	return slices.Contains(k.Subresources, subresource)
}

// writtenByServer reports whether controllers in the server write to objects of this kind, at any time.
func (k Kind) writtenByServer() bool {
	switch k.Group {
	case "apiextensions.k8s.io", "apiregistration.k8s.io", "flowcontrol.apiserver.k8s.io":
		return true
	}
	return false
}

// String names the kind.
func (k Kind) String() string { return k.APIVersion() + " " + k.Resource }
