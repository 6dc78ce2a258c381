package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/balsahq/balsa/control/corpus"
)

// seedText has a valid object of each kind, most of them from upstream's k8s.io/kubernetes/test/integration/etcd, to
// which more is added where a kind has parts that exclude each other.
//
//go:embed seeds.yaml
var seedText []byte

// seeds are the objects of seedText by apiVersion and kind.
func seeds() (map[string]map[string]any, error) {
	out := map[string]map[string]any{}
	for _, doc := range bytes.Split(seedText, []byte("\n---\n")) {
		o := map[string]any{}
		if err := yaml.Unmarshal(doc, &o); err != nil {
			return nil, fmt.Errorf("%s: %w", doc, err)
		}
		if len(o) > 0 {
			out[fmt.Sprint(o["apiVersion"], " ", o["kind"])] = o
		}
	}
	return out, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// served are the kinds that can be created and read.
func served(ctx context.Context, s corpus.Server) ([]corpus.Kind, error) {
	var out []corpus.Kind
	docs, err := corpus.Surface(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, d := range docs {
		var list metav1.APIResourceList
		if json.Unmarshal([]byte(d.Text), &list) != nil || list.Kind != "APIResourceList" {
			continue
		}
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		at := map[string]int{}
		for _, r := range list.APIResources {
			if !strings.Contains(r.Name, "/") && slices.Contains(r.Verbs, "create") && slices.Contains(r.Verbs, "get") {
				at[r.Name] = len(out)
				out = append(out, corpus.Kind{
					Group: gv.Group, Version: gv.Version, Kind: r.Kind, Resource: r.Name, Namespaced: r.Namespaced, Verbs: r.Verbs,
					Custom: strings.HasSuffix(gv.Group, "example.com"),
				})
			}
		}
		for _, r := range list.APIResources {
			if resource, sub, ok := strings.Cut(r.Name, "/"); ok {
				if i, known := at[resource]; known {
					out[i].Subresources = append(out[i].Subresources, sub)
				}
			}
		}
	}
	return out, nil
}

// fill gives every kind its objects.
func fill(ctx context.Context, s corpus.Server, kinds []corpus.Kind, only *regexp.Regexp) error {
	all, err := seeds()
	if err != nil {
		return err
	}
	dir, err := testdata()
	if err != nil {
		return err
	}
	var podSpec any
	for i := range kinds {
		k := &kinds[i]
		if !only.MatchString(k.String()) {
			podSpec = podOf(*k, podSpec)
			continue
		}
		seed := all[k.APIVersion()+" "+k.Kind]
		if seed == nil {
			return fmt.Errorf("no seed for %s", k)
		}
		w, err := wishesFor(dir, schema.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: k.Kind})
		if err != nil {
			return err
		}
		w.template(podSpec)
		if err := fillOne(ctx, s, k, seed, w); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", k, err)
		}
		podSpec = podOf(*k, podSpec)
		fmt.Printf("%-70s %4d of %4d values\n", k, k.Values, k.Wished)
	}
	return nil
}

// podOf is the spec of the pod of the corpus, once it is known.
func podOf(k corpus.Kind, known any) any {
	if k.Kind != "Pod" || k.Object == "" {
		return known
	}
	var pod map[string]any
	if json.Unmarshal([]byte(k.Object), &pod) != nil {
		return known
	}
	return pod["spec"]
}

// template wishes for that pod in the templates of other kinds, so that what is valid of it is not found out again.
func (w wishes) template(spec any) {
	for _, path := range [][]step{{"template"}, {"spec", "template"}, {"spec", "jobTemplate", "spec", "template"}} {
		if old, ok := at(w.whole, append(slices.Clone(path), "spec")); ok && spec != nil {
			if _, pod := old.(map[string]any)["containers"]; pod {
				put(w.whole, append(slices.Clone(path), "spec"), clone(spec))
			}
		}
	}
}

// fillOne finds the object of a kind, and its status, which needs the object stored.
func fillOne(ctx context.Context, s corpus.Server, k *corpus.Kind, seed map[string]any, w wishes) error {
	decorate(seed, k)
	status := seed["status"]
	if k.HasSubresource("status") {
		delete(seed, "status")
	}
	e := &enlarger{
		ctx: ctx, server: s, seed: seed, wishes: w,
		ask: corpus.Request{Method: "POST", Path: k.Path() + "?dryRun=All&fieldValidation=Strict", ContentType: "application/json", Accept: "application/json"},
	}
	object, err := e.enlarge()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: the seed is taken: %v\n", k, err)
		object = seed
	} else {
		e.regain()
		object = e.object
	}
	k.Name = fmt.Sprint(object["metadata"].(map[string]any)["name"])
	k.Status = ""
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	k.Object, k.Values, k.Wished = string(text), leaves(object), leaves(object)+e.lost()
	if !k.HasSubresource("status") || (w.whole["status"] == nil && status == nil) {
		return nil
	}
	return fillStatus(ctx, s, k, status, w)
}

// decorate gives a seed the metadata that all objects of the corpus have.
func decorate(seed map[string]any, k *corpus.Kind) {
	meta := seed["metadata"].(map[string]any)
	meta["labels"] = merge(map[string]any{"corpus": "true", "example.com/label": "a.b-c_d"}, meta["labels"])
	meta["annotations"] = merge(map[string]any{"example.com/annotation": "any <text> & more: \"é\"\n"}, meta["annotations"])
	meta["finalizers"] = []any{"example.com/corpus"}
	meta["ownerReferences"] = []any{map[string]any{
		"apiVersion": "example.com/v1", "kind": "Owner", "name": "owner", "uid": "owner-uid", "controller": true, "blockOwnerDeletion": true,
	}}
	if k.Namespaced {
		meta["namespace"] = corpus.Namespace
	}
}

func fillStatus(ctx context.Context, s corpus.Server, k *corpus.Kind, seed any, w wishes) (err error) {
	const json_ = "application/json"
	a, err := s.Ask(ctx, corpus.Request{Method: "POST", Path: k.Path(), ContentType: json_, Accept: json_, Body: []byte(k.Object)})
	if err != nil {
		return err
	}
	if a.Status != 201 {
		return fmt.Errorf("create: %d %s", a.Status, a.Body)
	}
	defer func() {
		for _, r := range []corpus.Request{
			{Method: "DELETE", Path: k.Path() + "/" + k.Name, ContentType: json_, Body: []byte(`{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0,"propagationPolicy":"Background"}`)},
			{Method: "PATCH", Path: k.Path() + "/" + k.Name, ContentType: "application/merge-patch+json", Body: []byte(`{"metadata":{"finalizers":null}}`)},
		} {
			if _, e := s.Ask(ctx, r); err == nil {
				err = e
			}
		}
	}()
	now := map[string]any{}
	if err := json.Unmarshal(a.Body, &now); err != nil {
		return err
	}
	delete(now["metadata"].(map[string]any), "managedFields")
	now["status"] = merge(now["status"], clone(seed))
	sw := wishes{fuzz: w.fuzz}
	if w.whole["status"] != nil {
		sw.whole = clone(now).(map[string]any)
		sw.whole["status"] = clone(w.whole["status"])
	}
	e := &enlarger{
		ctx: ctx, server: s, seed: now, wishes: sw, within: "status",
		ask: corpus.Request{Method: "PUT", Path: k.Path() + "/" + k.Name + "/status?dryRun=All&fieldValidation=Strict", ContentType: json_, Accept: json_},
	}
	if _, err := e.enlarge(); err != nil {
		return fmt.Errorf("status: %w", err)
	}
	e.regain()
	text, err := json.Marshal(e.object["status"])
	if err != nil {
		return err
	}
	k.Status = string(text)
	k.Values += leaves(e.object["status"])
	k.Wished += leaves(e.object["status"]) + e.lost()
	return nil
}
