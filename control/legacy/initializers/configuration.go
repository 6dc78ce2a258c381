package initializers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The names of InitializerConfigurations in the API.
var (
	Resource = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1alpha1", Resource: "initializerconfigurations"}
	Kind     = schema.GroupVersionKind{Group: Resource.Group, Version: Resource.Version, Kind: "InitializerConfiguration"}
)

// Configuration is admissionregistration.k8s.io/v1alpha1 InitializerConfiguration, which k8s.io/api no longer has.
type Configuration struct {
	metav1.ObjectMeta `json:"metadata"`
	Initializers      []Initializer `json:"initializers,omitempty"`
}

// Initializer is one program, which finishes the objects that any of its rules matches. Without rules it finishes none.
type Initializer struct {
	// Name is the program's name in pending lists: a domain of at least three parts, such as podimage.example.com.
	Name  string `json:"name"`
	Rules []Rule `json:"rules,omitempty"`
}

// Rule matches a resource by each of its three lists. "*" alone stands for everything. Subresources are never matched.
type Rule struct {
	APIGroups   []string `json:"apiGroups,omitempty"`
	APIVersions []string `json:"apiVersions,omitempty"`
	Resources   []string `json:"resources,omitempty"`
}

// Decode reads a configuration's JSON.
func Decode(text []byte) (*Configuration, error) {
	c := &Configuration{}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("initializers: %w", err)
	}
	return c, nil
}

// Names returns the initializers of a new object of a resource, in their order: configurations sorted by name, and each
// one's initializers as written. A name that occurs twice is returned once.
func Names(all []*Configuration, resource schema.GroupVersionResource) []string {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b *Configuration) int { return strings.Compare(a.Name, b.Name) })
	var names []string
	for _, c := range all {
		for _, i := range c.Initializers {
			if !slices.Contains(names, i.Name) && slices.ContainsFunc(i.Rules, func(r Rule) bool { return r.matches(resource) }) {
				names = append(names, i.Name)
			}
		}
	}
	return names
}

func (r Rule) matches(resource schema.GroupVersionResource) bool {
	has := func(list []string, s string) bool { return slices.Contains(list, "*") || slices.Contains(list, s) }
	return has(r.APIGroups, resource.Group) && has(r.APIVersions, resource.Version) && has(r.Resources, resource.Resource)
}

// served are the groups that authentication, authorization and discovery read, and groups whose objects are answers and
// never stored. A server needs them before any initializer can run.
var served = []string{
	"admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "authentication.k8s.io", "authorization.k8s.io",
}

// Exempt reports whether objects of a resource never wait for initializers, whatever rules say. These are the groups in
// served and Leases, by which leaders and living nodes are known.
func Exempt(r schema.GroupResource) bool {
	return slices.Contains(served, r.Group) || r == schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
}

// Validate finds the faults that the kind's schema cannot express, as Kubernetes v1.9 did.
func Validate(c *Configuration) field.ErrorList {
	faults := validation.ValidateObjectMeta(&c.ObjectMeta, false, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	for i := range c.Initializers {
		at := field.NewPath("initializers").Index(i)
		faults = append(faults, utilvalidation.IsFullyQualifiedName(at.Child("name"), c.Initializers[i].Name)...)
		for j := range c.Initializers[i].Rules {
			faults = append(faults, c.Initializers[i].Rules[j].validate(at.Child("rules").Index(j))...)
		}
	}
	return faults
}

func (r *Rule) validate(at *field.Path) (faults field.ErrorList) {
	check := func(name, what string, list []string, mayBeEmpty bool) {
		at := at.Child(name)
		if len(list) == 0 {
			faults = append(faults, field.Required(at, `name at least one, or give "*" for all`))
		}
		if len(list) > 1 && slices.Contains(list, "*") {
			faults = append(faults, field.Invalid(at, list, "if '*' is present, must not specify other "+what))
		}
		for i, s := range list {
			switch {
			case s == "" && !mayBeEmpty:
				faults = append(faults, field.Required(at.Index(i), "must not be empty"))
			case strings.Contains(s, "/"):
				faults = append(faults, field.Invalid(at.Index(i), s, "must not specify subresources or versions: it is a single name"))
			case s != "*" && strings.Contains(s, "*"):
				faults = append(faults, field.Invalid(at.Index(i), s, "'*' stands for all and not for a part of a name"))
			}
		}
	}
	check("apiGroups", "API groups", r.APIGroups, true) // the core group has no name
	check("apiVersions", "API versions", r.APIVersions, false)
	check("resources", "resources", r.Resources, false)
	return faults
}
