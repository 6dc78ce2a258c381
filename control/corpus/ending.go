package corpus

import (
	"encoding/json"
	"maps"
	"slices"
)

const background = `{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0,"propagationPolicy":"Background"}`

func (t *teller) remove() {
	send := func(name, query, body string) {
		t.ask("delete: "+name, Request{Method: "DELETE", Path: t.item() + query, ContentType: jsonType, Accept: jsonType, Body: []byte(body)})
	}
	send("another UID", "", `{"preconditions":{"uid":"other"}}`)
	send("another version", "", `{"preconditions":{"resourceVersion":"1"}}`)
	send("a bad policy", "", `{"propagationPolicy":"Sideways"}`)
	send("dry run", "?dryRun=All", background)
	send("for good", "", background)
	t.release()
	t.ask("get what is gone", Request{Method: "GET", Path: t.item(), Accept: jsonType})
	t.ask("get what is gone, in protobuf", Request{Method: "GET", Path: t.item(), Accept: protobufType + "," + jsonType})
}

// release takes away what keeps a deleted object, as those would who put it there.
func (t *teller) release() {
	for range 3 {
		a := t.quiet(Request{Method: "GET", Path: t.item(), Accept: jsonType})
		if t.err != nil || a.Status == 404 {
			break
		}
		if t.Resource == "namespaces" {
			t.ask("finalize", Request{
				Method: "PUT", Path: t.item() + "/finalize", ContentType: jsonType, Accept: jsonType, Body: t.change(a.Body, "spec.finalizers", []any{}),
			})
		}
		t.ask("let go", Request{Method: "PATCH", Path: t.item(), ContentType: merges, Accept: jsonType, Body: []byte(`{"metadata":{"finalizers":null}}`)})
	}
	t.gone++
}

// again creates the object in the other encodings and deletes it in the other ways.
func (t *teller) again() {
	other := protobufType
	if t.Custom {
		other = yamlType
	}
	t.post("create in "+other, "", other, other)
	if t.Can("deletecollection") {
		t.ask("delete the collection, dry run", Request{
			Method: "DELETE", Path: t.Path() + t.selected("dryRun=All"), ContentType: jsonType, Accept: jsonType, Body: []byte(background),
		})
		t.ask("delete the collection", Request{Method: "DELETE", Path: t.Path() + t.selected(), ContentType: jsonType, Accept: jsonType, Body: []byte(background)})
	} else {
		t.ask("delete", Request{Method: "DELETE", Path: t.item(), ContentType: jsonType, Accept: jsonType, Body: []byte(background)})
	}
	t.release()
	t.post("create in YAML", "", yamlType, yamlType)
	t.ask("delete, answer in "+other, Request{Method: "DELETE", Path: t.item(), ContentType: jsonType, Accept: other, Body: []byte(background)})
	t.release()
}

// history is all of it once more, as those saw it who watched.
func (t *teller) history() {
	if !t.Can("watch") {
		return
	}
	query := t.selected("watch=1", "resourceVersion="+t.start)
	for _, name := range []string{"JSON", "protobuf", "table", "metadata", "metadata in protobuf"} {
		t.watch("watch everything as "+name, Request{Method: "GET", Path: t.Path() + query, Accept: t.encodings(partialOf)[name]}, "DELETED", t.gone)
	}
}

func sorted(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// raw is JSON inside JSON.
func raw(text string) any { return json.RawMessage(text) }
