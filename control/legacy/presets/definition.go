package presets

import (
	"encoding/json"
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/utils/ptr"
)

// DefinitionName is the name of the CustomResourceDefinition.
var DefinitionName = Resource.Resource + "." + Resource.Group

// approval is the annotation that definitions in groups of Kubernetes need.
const approval = "unapproved, this is the API of Kubernetes v1.19"

// Definition is the CustomResourceDefinition of PodPresets. Its schema is made from upstream's schema of pods, so it
// has the volumes of this version of Kubernetes.
func Definition() (*apiextensionsv1.CustomResourceDefinition, error) {
	s, err := newSchemas().preset()
	if err != nil {
		return nil, err
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: DefinitionName, Annotations: map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: approval}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: Resource.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: Resource.Resource, Singular: "podpreset", Kind: Kind.Kind, ListKind: Kind.Kind + "List",
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: Resource.Version, Served: true, Storage: true,
				Schema:                   &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: s},
				AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Created At", Type: "date", JSONPath: ".metadata.creationTimestamp"}},
			}},
		},
	}, nil
}

const reference = "#/definitions/"

// schemas converts upstream's schemas of Go types to structural ones, which have no references.
type schemas struct {
	all map[string]common.OpenAPIDefinition
	err error
}

func newSchemas() *schemas {
	return &schemas{all: generatedopenapi.GetOpenAPIDefinitions(func(name string) spec.Ref { return spec.MustCreateRef(reference + name) })}
}

func (s *schemas) preset() (*apiextensionsv1.JSONSchemaProps, error) {
	object := func(text string, required []string, fields map[string]apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "object", Description: text, Required: required, Properties: fields}
	}
	list := func(text, item, key string) apiextensionsv1.JSONSchemaProps {
		of := s.named(item)
		out := apiextensionsv1.JSONSchemaProps{Type: "array", Description: text, Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &of}}
		if key != "" {
			out.XListType, out.XListMapKeys = ptr.To("map"), []string{key}
		}
		return out
	}
	selector := s.named("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector")
	selector.Description = "selects the pods of the namespace that the preset is for, by their labels; empty selects all"
	text := func() apiextensionsv1.JSONSchemaProps { return apiextensionsv1.JSONSchemaProps{Type: "string"} }
	out := object("PodPreset is merged into matching pods when they are created.", []string{"spec"}, map[string]apiextensionsv1.JSONSchemaProps{
		"apiVersion": text(), "kind": text(), "metadata": {Type: "object"},
		"spec": object("which pods, and what they get", []string{"selector"}, map[string]apiextensionsv1.JSONSchemaProps{
			"selector":     selector,
			"env":          list("environment variables of every container", "io.k8s.api.core.v1.EnvVar", "name"),
			"envFrom":      list("sources of environment variables of every container", "io.k8s.api.core.v1.EnvFromSource", ""),
			"volumes":      list("volumes of the pod", "io.k8s.api.core.v1.Volume", "name"),
			"volumeMounts": list("mounts of every container", "io.k8s.api.core.v1.VolumeMount", "mountPath"),
		}),
	})
	return &out, s.err
}

func (s *schemas) named(name string) apiextensionsv1.JSONSchemaProps {
	d, ok := s.all[name]
	if !ok {
		s.err = fmt.Errorf("presets: upstream has no schema of %s", name)
		return apiextensionsv1.JSONSchemaProps{}
	}
	return s.structural(&d.Schema)
}

// structural drops defaults, which are set when a pod is created, and parts that only Go types need.
func (s *schemas) structural(in *spec.Schema) apiextensionsv1.JSONSchemaProps {
	if name, ok := strings.CutPrefix(in.Ref.String(), reference); ok {
		out := s.named(name)
		if in.Description != "" {
			out.Description = in.Description
		}
		return out
	}
	out := apiextensionsv1.JSONSchemaProps{Description: in.Description, Format: in.Format, Required: in.Required}
	switch {
	case len(in.OneOf) > 0: // a number or a text: quantities, ports
		out.Format, out.XIntOrString = "", true
	case len(in.Type) == 1:
		out.Type = in.Type[0]
	default:
		s.err = fmt.Errorf("presets: upstream's schema has types %v", in.Type)
	}
	for _, e := range in.Enum {
		raw, err := json.Marshal(e)
		if err != nil {
			s.err = fmt.Errorf("presets: upstream's schema: %w", err)
		}
		out.Enum = append(out.Enum, apiextensionsv1.JSON{Raw: raw})
	}
	if in.Items != nil && in.Items.Schema != nil {
		of := s.structural(in.Items.Schema)
		out.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &of}
	}
	if in.AdditionalProperties != nil && in.AdditionalProperties.Schema != nil {
		of := s.structural(in.AdditionalProperties.Schema)
		out.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &of}
	}
	if len(in.Properties) > 0 {
		out.Properties = make(map[string]apiextensionsv1.JSONSchemaProps, len(in.Properties))
	}
	for name := range in.Properties {
		p := in.Properties[name]
		out.Properties[name] = s.structural(&p)
	}
	return out
}
