package openapi

import (
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// definitions are the CustomResourceDefinitions at one moment.
type definitions []*apiextensionsv1.CustomResourceDefinition

func (d *Documents) custom() definitions {
	if d.cfg.Custom == nil {
		return nil
	}
	return d.cfg.Custom()
}

// each calls fn for every served version.
func (d definitions) each(fn func(path string, crd *apiextensionsv1.CustomResourceDefinition, version string)) {
	for _, crd := range d {
		for _, v := range crd.Spec.Versions {
			if v.Served {
				fn("apis/"+crd.Spec.Group+"/"+v.Name, crd, v.Name)
			}
		}
	}
}

// paths returns the group version paths that custom resources add.
func (d definitions) paths() []string {
	var out []string
	d.each(func(path string, _ *apiextensionsv1.CustomResourceDefinition, _ string) { out = append(out, path) })
	slices.Sort(out)
	return slices.Compact(out)
}

// hash identifies the definitions below a path; all of them if path is empty.
func (d definitions) hash(path string) string {
	var b strings.Builder
	d.each(func(p string, crd *apiextensionsv1.CustomResourceDefinition, version string) {
		if path == "" || p == path {
			fmt.Fprintf(&b, "%s %s %s %d\n", crd.Name, version, crd.UID, crd.Generation)
		}
	})
	return b.String()
}

// buildV3 returns the document of one path, nil if it has no custom resource.
func (d definitions) buildV3(path string) (*spec3.OpenAPI, error) {
	var specs []*spec3.OpenAPI
	var fault error
	d.each(func(p string, crd *apiextensionsv1.CustomResourceDefinition, version string) {
		if p != path || fault != nil {
			return
		}
		s, err := builder.BuildOpenAPIV3(crd, version, builder.Options{V2: false, IncludeSelectableFields: true})
		if err != nil {
			fault = fmt.Errorf("OpenAPI v3 of %s %s: %w", crd.Name, version, err)
			return
		}
		specs = append(specs, s)
	})
	if fault != nil || len(specs) == 0 {
		return nil, fault
	}
	return builder.MergeSpecsV3(specs...)
}

// mergeV2 adds the custom resources to the document of the built-in ones.
func (d definitions) mergeV2(static *spec.Swagger) (*spec.Swagger, error) {
	var specs []*spec.Swagger
	var fault error
	d.each(func(_ string, crd *apiextensionsv1.CustomResourceDefinition, version string) {
		s, err := builder.BuildOpenAPIV2(crd, version, builder.Options{V2: true, IncludeSelectableFields: true})
		if err != nil {
			fault = fmt.Errorf("%s %s: %w", crd.Name, version, err)
			return
		}
		specs = append(specs, s)
	})
	if fault != nil || len(specs) == 0 {
		return static, fault
	}
	return builder.MergeSpecs(static, specs...)
}
