package corpus

import (
	"encoding/json"
	"maps"
	"slices"
)

const deleteOptions = `{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0,"propagationPolicy":"Background"}`

func (t *recorder) recordDelete() {
	send := func(name, query, body string) {
		t.record("delete: "+name, Request{Method: "DELETE", Path: t.objectPath() + query, ContentType: jsonType, Accept: jsonType, Body: []byte(body)})
	}
	send("another UID", "", `{"preconditions":{"uid":"other"}}`)
	send("another version", "", `{"preconditions":{"resourceVersion":"1"}}`)
	send("a bad policy", "", `{"propagationPolicy":"Sideways"}`)
	send("dry run", "?dryRun=All", deleteOptions)
	send("for good", "", deleteOptions)
	t.removeFinalizers()
	t.record("get what is gone", Request{Method: "GET", Path: t.objectPath(), Accept: jsonType})
	t.record("get what is gone, in protobuf", Request{Method: "GET", Path: t.objectPath(), Accept: protobufType + "," + jsonType})
}

// removeFinalizers removes the finalizers of a deleted object, as their owners would.
func (t *recorder) removeFinalizers() {
	for range 3 {
		a := t.send(Request{Method: "GET", Path: t.objectPath(), Accept: jsonType})
		if t.err != nil || a.Status == 404 {
			break
		}
		if t.Resource == "namespaces" {
			t.record("finalize", Request{
				Method: "PUT", Path: t.objectPath() + "/finalize", ContentType: jsonType, Accept: jsonType, Body: t.setField(a.Body, "spec.finalizers", []any{}),
			})
		}
		t.record("let go", Request{Method: "PATCH", Path: t.objectPath(), ContentType: mergePatch, Accept: jsonType, Body: []byte(`{"metadata":{"finalizers":null}}`)})
	}
	t.deletions++
}

// recordOtherEncodings creates the object in the other encodings and deletes it in the other ways.
func (t *recorder) recordOtherEncodings() {
	other := protobufType
	if t.Custom {
		other = yamlType
	}
	t.post("create in "+other, "", other, other)
	if t.HasVerb("deletecollection") {
		t.record("delete the collection, dry run", Request{
			Method: "DELETE", Path: t.Path() + t.selectObject("dryRun=All"), ContentType: jsonType, Accept: jsonType, Body: []byte(deleteOptions),
		})
		t.record("delete the collection", Request{Method: "DELETE", Path: t.Path() + t.selectObject(), ContentType: jsonType, Accept: jsonType, Body: []byte(deleteOptions)})
	} else {
		t.record("delete", Request{Method: "DELETE", Path: t.objectPath(), ContentType: jsonType, Accept: jsonType, Body: []byte(deleteOptions)})
	}
	t.removeFinalizers()
	t.post("create in YAML", "", yamlType, yamlType)
	t.record("delete, answer in "+other, Request{Method: "DELETE", Path: t.objectPath(), ContentType: jsonType, Accept: other, Body: []byte(deleteOptions)})
	t.removeFinalizers()
}

// recordHistory records the events of the whole scenario as watchers see them.
func (t *recorder) recordHistory() {
	if !t.HasVerb("watch") {
		return
	}
	query := t.selectObject("watch=1", "resourceVersion="+t.startVersion)
	for _, name := range []string{"JSON", "protobuf", "table", "metadata", "metadata in protobuf"} {
		t.recordWatch("watch everything as "+name, Request{Method: "GET", Path: t.Path() + query, Accept: t.encodings(partialOf)[name]}, "DELETED", t.deletions)
	}
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// rawJSON is JSON that is put into JSON as it is.
func rawJSON(text string) any { return json.RawMessage(text) }
