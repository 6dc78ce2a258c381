package initializers

import (
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// DefinitionName is the name of the CustomResourceDefinition.
var DefinitionName = Resource.Resource + "." + Resource.Group

const (
	// approval is the annotation that definitions in groups of Kubernetes need.
	approval = "unapproved, this is the API of Kubernetes v1.13"
	singular = "initializerconfiguration"
)

// Definition is the CustomResourceDefinition by which the API serves InitializerConfigurations.
func Definition() (*apiextensionsv1.CustomResourceDefinition, error) {
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	list := func(about string, of apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "array", Description: about, Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &of}}
	}
	rule := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"apiGroups":   list(`API groups; "" is the core group, "*" is all`, text),
		"apiVersions": list(`API versions; "*" is all`, text),
		"resources":   list(`resources without subresources; "*" is all`, text),
	}}
	name := text
	name.Description = "what the initializer looks for in pending lists: a domain of at least three parts, as podimage.example.com"
	initializers := list("who finishes new objects, in this order", apiextensionsv1.JSONSchemaProps{
		Type: "object", Required: []string{"name"}, Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"name": name, "rules": list("which objects: those that any rule matches", rule),
		},
	})
	initializers.XListType, initializers.XListMapKeys = ptr.To("map"), []string{"name"}
	schema := &apiextensionsv1.JSONSchemaProps{
		Type: "object", Description: "InitializerConfiguration says which initializers finish which new objects.",
		Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"apiVersion": text, "kind": text, "metadata": {Type: "object"}, "initializers": initializers,
		},
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: DefinitionName, Annotations: map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: approval}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: Resource.Group, Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: Resource.Resource, Singular: singular, Kind: Kind.Kind, ListKind: Kind.Kind + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: Resource.Version, Served: true, Storage: true,
				Schema:                   &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: schema},
				AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"}},
			}},
		},
	}, nil
}

// Discovery returns the kind's version in discovery. Its group also has built-in versions, and the server of custom
// resources adds nothing to the discovery of such a group.
func Discovery() apidiscoveryv2.APIVersionDiscovery {
	return apidiscoveryv2.APIVersionDiscovery{
		Version: Resource.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
		Resources: []apidiscoveryv2.APIResourceDiscovery{{
			Resource: Resource.Resource, SingularResource: singular, Scope: apidiscoveryv2.ScopeCluster,
			ResponseKind: &metav1.GroupVersionKind{Group: Kind.Group, Version: Kind.Version, Kind: Kind.Kind},
			Verbs:        []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"},
		}},
	}
}
