package corpus

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Document is one discovery or OpenAPI document of a server. Its text is JSON, normalized.
type Document struct{ Path, Accept, Text string }

// Name returns a unique name. The two forms of discovery have the same path.
func (d Document) Name() string {
	if d.Accept == aggregated {
		return d.Path + " (aggregated)"
	}
	return d.Path
}

const (
	plain      = "application/json"
	aggregated = "application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList"
)

// Surface reads discovery from a server, in both forms, and all OpenAPI documents that it lists.
func Surface(ctx context.Context, s Server) ([]Document, error) {
	r := documentReader{ctx: ctx, server: s}
	r.get("/api", aggregated)
	r.get("/apis", aggregated)
	for _, v := range list(r.get("/api", plain), "versions") {
		r.get(fmt.Sprintf("/api/%s", v), plain)
	}
	for _, group := range list(r.get("/apis", plain), "groups") {
		g, _ := group.(map[string]any)
		r.get(fmt.Sprintf("/apis/%s", g["name"]), plain)
		for _, v := range list(g, "versions") {
			v, _ := v.(map[string]any)
			r.get(fmt.Sprintf("/apis/%s", v["groupVersion"]), plain)
		}
	}
	index, _ := r.get("/openapi/v3", plain)["paths"].(map[string]any)
	for _, path := range slices.Sorted(maps.Keys(index)) {
		r.get("/openapi/v3/"+path, plain)
	}
	r.get("/openapi/v2", plain)
	return r.out, r.err
}

func list(doc map[string]any, field string) []any {
	l, _ := doc[field].([]any)
	return l
}

// documentReader reads documents until an error.
type documentReader struct {
	ctx    context.Context
	server Server
	out    []Document
	err    error
}

func (r *documentReader) get(path, accept string) map[string]any {
	if r.err != nil {
		return nil
	}
	answer, err := r.server.Ask(r.ctx, Request{Method: "GET", Path: path, Accept: accept})
	if err == nil && answer.Status != 200 {
		err = fmt.Errorf("GET %s: %d %s", path, answer.Status, answer.Body)
	}
	doc := map[string]any{}
	if err == nil {
		err = json.Unmarshal(answer.Body, &doc)
	}
	if err != nil {
		r.err = err
		return nil
	}
	normalizeDocument(path, doc)
	text, err := json.Marshal(doc)
	r.err = err
	r.out = append(r.out, Document{Path: path, Accept: accept, Text: string(text)})
	return doc
}

// normalizeDocument replaces in a document what differs between servers: the address, the version, hashes of documents.
func normalizeDocument(path string, doc map[string]any) {
	for _, a := range list(doc, "serverAddressByClientCIDRs") {
		a.(map[string]any)["serverAddress"] = "ADDRESS"
	}
	if info, ok := doc["info"].(map[string]any); ok {
		info["version"] = "VERSION"
	}
	if path != "/openapi/v3" {
		return
	}
	for _, entry := range doc["paths"].(map[string]any) {
		e := entry.(map[string]any)
		e["serverRelativeURL"], _, _ = strings.Cut(fmt.Sprint(e["serverRelativeURL"]), "hash=")
	}
}
