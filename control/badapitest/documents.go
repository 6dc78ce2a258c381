package badapitest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// operation is one method of one path.
type operation struct {
	method, path string
	action       string // x-kubernetes-action
	group, kind  string // of its objects
	version      string
	query        []string     // names of query parameters
	accepts      []string     // content types of bodies
	body         *spec.Schema // nil: none
	schemas      schemas
}

type schemas map[string]*spec.Schema

// Documents are a server's OpenAPI documents.
type Documents struct {
	get        func(path string) (int, []byte)
	parts      map[string][]operation // by the URL of the document, which changes with its content
	operations []operation
}

// NewDocuments returns Documents that are read with get.
func NewDocuments(get func(path string) (int, []byte)) *Documents {
	return &Documents{get: get, parts: map[string][]operation{}}
}

// Load reads the documents that changed since the last call.
func (d *Documents) Load() error {
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	if err := d.fetch("/openapi/v3", &index); err != nil {
		return err
	}
	parts, operations := map[string][]operation{}, []operation(nil)
	names := make([]string, 0, len(index.Paths))
	for name := range index.Paths {
		names = append(names, name)
	}
	slices.Sort(names) // so that the same seed gives the same order
	for _, name := range names {
		url := index.Paths[name].ServerRelativeURL
		part, ok := d.parts[url]
		if !ok {
			doc := &spec3.OpenAPI{}
			if err := d.fetch(url, doc); err != nil {
				return err
			}
			part = operationsOf(doc)
		}
		parts[url] = part
		operations = append(operations, part...)
	}
	d.parts, d.operations = parts, operations
	return nil
}

// Size returns the number of operations.
func (d *Documents) Size() int { return len(d.operations) }

func (d *Documents) fetch(path string, into any) error {
	code, text := d.get(path)
	if code != http.StatusOK {
		return fmt.Errorf("GET %s: %d %.200s", path, code, text)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("GET %s: %w", path, err)
	}
	return nil
}

func operationsOf(doc *spec3.OpenAPI) (out []operation) {
	if doc.Paths == nil {
		return nil
	}
	var all schemas
	if doc.Components != nil {
		all = doc.Components.Schemas
	}
	paths := make([]string, 0, len(doc.Paths.Paths))
	for path := range doc.Paths.Paths {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		p := doc.Paths.Paths[path]
		for _, m := range []struct {
			name string
			op   *spec3.Operation
		}{{"GET", p.Get}, {"PUT", p.Put}, {"POST", p.Post}, {"DELETE", p.Delete}, {"PATCH", p.Patch}, {"HEAD", p.Head}, {"OPTIONS", p.Options}} {
			if m.op != nil {
				out = append(out, operationOf(m.name, path, p, m.op, all))
			}
		}
	}
	return out
}

func operationOf(method, path string, p *spec3.Path, from *spec3.Operation, all schemas) operation {
	op := operation{method: method, path: path, schemas: all}
	op.action, _ = from.Extensions.GetString("x-kubernetes-action")
	if gvk, ok := from.Extensions["x-kubernetes-group-version-kind"].(map[string]any); ok {
		op.group, _ = gvk["group"].(string)
		op.version, _ = gvk["version"].(string)
		op.kind, _ = gvk["kind"].(string)
	}
	for _, q := range append(slices.Clone(p.Parameters), from.Parameters...) {
		if q.In == "query" {
			op.query = append(op.query, q.Name)
		}
	}
	if from.RequestBody != nil {
		for contentType, media := range from.RequestBody.Content {
			op.accepts = append(op.accepts, contentType)
			op.body = media.Schema
		}
		slices.Sort(op.accepts)
	}
	return op
}

// resolve follows references to the definition of a schema.
func (s schemas) resolve(in *spec.Schema) *spec.Schema {
	for range 10 {
		switch {
		case in == nil:
			return nil
		case in.Ref.String() != "":
			in = s[strings.TrimPrefix(in.Ref.String(), "#/components/schemas/")]
		case len(in.AllOf) == 1 && len(in.Properties) == 0:
			in = &in.AllOf[0]
		default:
			return in
		}
	}
	return nil
}
