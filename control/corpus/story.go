package corpus

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"
)

const (
	jsonType  = "application/json"
	yamlType  = "application/yaml"
	cborType  = "application/cbor"
	tableOf   = ";as=Table;v=v1;g=meta.k8s.io"
	partialOf = ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	partials  = ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	jsonPatch = "application/json-patch+json"
	merges    = "application/merge-patch+json"
	strategic = "application/strategic-merge-patch+json"
	applies   = "application/apply-patch+yaml"
)

// Story is everything that is done to one object of a kind.
type Story struct {
	Kind      string
	Exchanges []Exchange
}

// Script does to an object of a kind what clients do, from before it exists until it is gone, and returns what was
// said. It does the same to every server, so that what was said can be compared.
func Script(ctx context.Context, server Server, k Kind) (Story, error) {
	t := &teller{session: session{ctx: ctx, server: server}, Kind: k}
	t.before()
	t.create()
	t.read()
	t.update()
	t.patch()
	t.apply()
	t.subresources()
	t.watchInitial()
	t.remove()
	t.again()
	t.history()
	if t.err != nil {
		return Story{}, fmt.Errorf("%s: %w", k, t.err)
	}
	return Story{Kind: k.String(), Exchanges: t.said}, nil
}

// teller is one story.
type teller struct {
	session
	Kind
	start string // resource version before the object was there
	gone  int    // how often it was deleted
}

func (t *teller) item() string { return t.Path() + "/" + t.Name }

// selected is the query that finds the object alone.
func (t *teller) selected(more ...string) string {
	return "?" + strings.Join(append([]string{"fieldSelector=" + url.QueryEscape("metadata.name="+t.Name)}, more...), "&")
}

// encodings are those an object can be asked for in; cbor is one that the server refuses as upstream does.
func (t *teller) encodings(table string) map[string]string {
	out := map[string]string{
		"JSON": jsonType, "YAML": yamlType, "CBOR": cborType, "table": jsonType + tableOf,
		"metadata": jsonType + table, "metadata in protobuf": protobufType + table,
		"protobuf": protobufType, "protobuf or JSON": protobufType + "," + jsonType, "table or JSON": jsonType + tableOf + "," + jsonType,
		"table in YAML": yamlType + tableOf, "unknown": "text/html", "any": "*/*",
	}
	return out
}

func (t *teller) before() {
	a := t.quiet(Request{Method: "GET", Path: t.Path() + "?limit=1", Accept: jsonType})
	if a.Status != 200 && t.err == nil {
		t.fail("list: %d %s", a.Status, a.Body)
	}
	t.start = field(a.Body, "metadata", "resourceVersion")
	t.ask("get what is not there", Request{Method: "GET", Path: t.item(), Accept: jsonType})
	t.ask("delete what is not there", Request{Method: "DELETE", Path: t.item(), Accept: jsonType})
	t.ask("patch what is not there", Request{Method: "PATCH", Path: t.item(), ContentType: merges, Body: []byte(`{}`)})
	t.ask("list nothing", Request{Method: "GET", Path: t.Path() + t.selected(), Accept: jsonType})
}

func (t *teller) post(name, query, contentType, accept string) Answer {
	return t.ask(name, Request{
		Method: "POST", Path: t.Path() + "?fieldManager=corpus" + query, Accept: accept,
		ContentType: contentType, Body: t.as(contentType, []byte(t.Object)),
	})
}

func (t *teller) create() {
	t.post("create, dry run", "&dryRun=All&fieldValidation=Strict", jsonType, jsonType)
	t.post("create", "&fieldValidation=Strict", jsonType, jsonType)
	t.current()
	t.post("create what is there", "", jsonType, jsonType)
	t.post("create what is there, answer in YAML", "", jsonType, yamlType)
	odd := t.change([]byte(t.Object), "odd", 1)
	odd = t.change(odd, "metadata.name", "odd")
	for _, validation := range []string{"Strict", "Warn", "Ignore"} {
		t.ask("create with an unknown field, validation "+validation, Request{
			Method: "POST", Path: t.Path() + "?dryRun=All&fieldValidation=" + validation, ContentType: jsonType, Accept: jsonType, Body: odd,
		})
	}
	t.ask("create of another kind", Request{
		Method: "POST", Path: t.Path(), ContentType: jsonType, Accept: jsonType, Body: t.change([]byte(t.Object), "kind", "Other"),
	})
	t.ask("create without a name", Request{
		Method: "POST", Path: t.Path() + "?dryRun=All", ContentType: jsonType, Accept: jsonType, Body: t.change([]byte(t.Object), "metadata.name", ""),
	})
	t.ask("create with a bad name and label", Request{
		Method: "POST", Path: t.Path() + "?dryRun=All", ContentType: jsonType, Accept: jsonType,
		Body: t.change(t.change([]byte(t.Object), "metadata.name", "B*d/"), "metadata.labels", map[string]any{"b d": "*"}),
	})
	t.ask("create in CBOR", Request{Method: "POST", Path: t.Path(), ContentType: cborType, Accept: jsonType, Body: []byte{0xd9, 0xd9, 0xf7, 0xa0}})
	t.ask("create from no JSON", Request{Method: "POST", Path: t.Path(), ContentType: jsonType, Accept: jsonType, Body: []byte(`{"kind":`)})
}

func (t *teller) read() {
	for _, name := range sorted(t.encodings(partialOf)) {
		t.ask("get as "+name, Request{Method: "GET", Path: t.item(), Accept: t.encodings(partialOf)[name]})
	}
	for _, name := range sorted(t.encodings(partials)) {
		t.ask("list as "+name, Request{Method: "GET", Path: t.Path() + t.selected(), Accept: t.encodings(partials)[name]})
	}
	t.ask("get, pretty", Request{Method: "GET", Path: t.item() + "?pretty=1", Accept: jsonType})
	t.ask("get a table with whole objects", Request{Method: "GET", Path: t.item() + "?includeObject=Object", Accept: jsonType + tableOf})
	t.ask("list a table without objects", Request{Method: "GET", Path: t.Path() + t.selected("includeObject=None"), Accept: jsonType + tableOf})
	t.ask("list by label", Request{Method: "GET", Path: t.Path() + "?labelSelector=" + url.QueryEscape("corpus in (true),example.com/label,!other"), Accept: jsonType})
	t.ask("list at any version", Request{Method: "GET", Path: t.Path() + t.selected("resourceVersion=0"), Accept: jsonType})
	t.ask("list with a bad label selector", Request{Method: "GET", Path: t.Path() + "?labelSelector=" + url.QueryEscape("a in (b"), Accept: jsonType})
	t.ask("list with a bad field selector", Request{Method: "GET", Path: t.Path() + "?fieldSelector=spec.nothing%3Da", Accept: jsonType})
	t.ask("list at a bad version", Request{Method: "GET", Path: t.Path() + "?resourceVersion=x", Accept: jsonType})
	t.ask("list with a bad match", Request{Method: "GET", Path: t.Path() + "?resourceVersionMatch=Exact", Accept: jsonType})
	t.ask("list with a bad continue", Request{Method: "GET", Path: t.Path() + "?limit=1&continue=x", Accept: jsonType})
	t.ask("list from the future", Request{Method: "GET", Path: t.Path() + "?resourceVersion=9000000000&resourceVersionMatch=Exact&limit=1", Accept: jsonType})
	t.ask("watch at a bad version", Request{Method: "GET", Path: t.Path() + "?watch=1&resourceVersion=x", Accept: jsonType})
	t.ask("no such subresource", Request{Method: "GET", Path: t.item() + "/nothing", Accept: jsonType})
	t.ask("a method that is not there", Request{Method: "POST", Path: t.item(), Accept: jsonType, ContentType: jsonType, Body: []byte(t.Object)})
}

// calm is how long an object that the server writes to has to stay as it is for the story to go on.
const calm = 150 * time.Millisecond

// current is the object as it is now, in JSON.
func (t *teller) current() []byte {
	get := Request{Method: "GET", Path: t.item(), Accept: jsonType}
	now := t.quiet(get).Body
	for range 20 {
		if !t.stirred() {
			break
		}
		select {
		case <-time.After(calm):
		case <-t.ctx.Done():
		}
		before := now
		if now = t.quiet(get).Body; bytes.Equal(before, now) {
			break
		}
	}
	return now
}

func (t *teller) put(name, query, contentType, accept string, object []byte) {
	t.ask(name, Request{
		Method: "PUT", Path: t.item() + "?fieldManager=corpus" + query, Accept: accept, ContentType: contentType, Body: t.as(contentType, object),
	})
}

func (t *teller) update() {
	old := t.current()
	t.put("update without a change", "", jsonType, jsonType, old)
	t.put("update in JSON", "", jsonType, jsonType, t.change(t.current(), "metadata.annotations.json", "1"))
	t.put("update of an old version", "", jsonType, jsonType, t.change(old, "metadata.annotations.old", "1"))
	t.put("update, dry run", "&dryRun=All", jsonType, jsonType, t.change(t.current(), "metadata.annotations.dry", "1"))
	t.put("update in YAML", "", yamlType, yamlType, t.change(t.current(), "metadata.annotations.yaml", "1"))
	if !t.Custom {
		t.put("update in protobuf", "", protobufType, protobufType, t.change(t.current(), "metadata.annotations.protobuf", "1"))
	}
	t.put("update with another name", "", jsonType, jsonType, t.change(t.current(), "metadata.name", "other"))
	t.put("update with another UID", "", jsonType, jsonType, t.change(t.current(), "metadata.uid", "other"))
	t.put("update without a version", "", jsonType, jsonType, t.change(t.change(t.current(), "metadata.resourceVersion", ""), "metadata.annotations.any", "1"))
}

func (t *teller) patch() {
	send := func(name, query, contentType, accept, body string) {
		t.ask("patch: "+name, Request{Method: "PATCH", Path: t.item() + "?fieldManager=corpus" + query, ContentType: contentType, Accept: accept, Body: []byte(body)})
	}
	send("JSON patch", "", jsonPatch, jsonType, `[{"op":"test","path":"/metadata/name","value":"`+t.Name+`"},{"op":"add","path":"/metadata/annotations/patched","value":"j"}]`)
	send("merge", "", merges, jsonType, `{"metadata":{"annotations":{"merged":"m","json":null}}}`)
	send("strategic", "", strategic, protobufType+","+jsonType, `{"metadata":{"annotations":{"strategic":"s"},"ownerReferences":[{"uid":"another","name":"b","kind":"B","apiVersion":"v1"}]}}`)
	send("strategic, taking away", "", strategic, jsonType, `{"metadata":{"ownerReferences":[{"$patch":"delete","uid":"another"}]}}`)
	send("dry run", "&dryRun=All", merges, jsonType, `{"metadata":{"labels":{"dry":"run"}}}`)
	send("a table", "", merges, jsonType+tableOf, `{"metadata":{"labels":{"seen":"table"}}}`)
	send("a test that fails", "", jsonPatch, jsonType, `[{"op":"test","path":"/metadata/name","value":"x"}]`)
	send("no patch", "", jsonPatch, jsonType, `{"op":"test"}`)
	send("no JSON", "", merges, jsonType, `{"metadata`)
	send("an unknown field", "&fieldValidation=Strict", merges, jsonType, `{"odd":1}`)
	send("an unknown field, a warning", "&fieldValidation=Warn", merges, jsonType, `{"odd":1}`)
	send("what does not change", "", merges, jsonType, `{"metadata":{"name":"other"}}`)
	send("of an unknown kind", "", "application/unknown", jsonType, `{}`)
	send("in CBOR", "", "application/apply-patch+cbor", jsonType, `{}`)
}

func (t *teller) apply() {
	body := func(more string) string {
		return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata:\n  name: %q\n%s", t.APIVersion(), t.Kind.Kind, t.Name, more)
	}
	send := func(name, query, text string) {
		t.ask("apply: "+name, Request{Method: "PATCH", Path: t.item() + "?" + query, ContentType: applies, Accept: jsonType, Body: []byte(text)})
	}
	send("without a manager", "", body(""))
	send("two fields", "fieldManager=one", body("  annotations:\n    applied: \"1\"\n    also: \"1\"\n"))
	send("a conflict", "fieldManager=two", body("  annotations:\n    applied: \"2\"\n"))
	send("forced", "fieldManager=two&force=true", body("  annotations:\n    applied: \"2\"\n"))
	send("no longer", "fieldManager=one", body(""))
	send("dry run", "fieldManager=three&dryRun=All", body("  labels:\n    dry: run\n"))
	send("an unknown field", "fieldManager=one&fieldValidation=Strict", body("odd: 1\n"))
	send("managed fields", "fieldManager=one", body("  managedFields: [{manager: x}]\n"))
	send("the whole object", "fieldManager=whole&force=true", string(t.as(yamlType, []byte(t.Object))))
	t.current()
	t.ask("get what is managed, in protobuf", Request{Method: "GET", Path: t.item(), Accept: protobufType + "," + jsonType})
}

func (t *teller) subresources() {
	if t.Has("status") {
		path := t.item() + "/status"
		t.ask("get status", Request{Method: "GET", Path: path, Accept: jsonType})
		if t.Status != "" {
			t.ask("update status", Request{
				Method: "PUT", Path: path + "?fieldManager=corpus", ContentType: jsonType, Accept: jsonType, Body: t.change(t.current(), "status", raw(t.Status)),
			})
		}
		t.ask("patch status", Request{Method: "PATCH", Path: path, ContentType: merges, Accept: jsonType, Body: []byte(`{"status":null,"metadata":{"annotations":{"status":"s"}}}`)})
		if t.Status != "" {
			t.ask("apply status", Request{
				Method: "PATCH", Path: path + "?fieldManager=status&force=true", ContentType: applies, Accept: jsonType,
				Body: t.change([]byte(fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q}}`, t.APIVersion(), t.Kind.Kind, t.Name)), "status", raw(t.Status)),
			})
		}
		t.current()
		for _, name := range []string{"JSON", "YAML", "protobuf", "table", "metadata"} {
			t.ask("get with status as "+name, Request{Method: "GET", Path: t.item(), Accept: t.encodings(partialOf)[name]})
		}
	}
	if t.Has("scale") {
		path := t.item() + "/scale"
		t.ask("get scale", Request{Method: "GET", Path: path, Accept: jsonType})
		t.ask("get scale in protobuf", Request{Method: "GET", Path: path, Accept: protobufType})
		scale := t.quiet(Request{Method: "GET", Path: path, Accept: jsonType}).Body
		t.ask("update scale", Request{Method: "PUT", Path: path, ContentType: jsonType, Accept: jsonType, Body: t.change(scale, "spec.replicas", 3)})
		t.ask("patch scale", Request{Method: "PATCH", Path: path, ContentType: merges, Accept: jsonType, Body: []byte(`{"spec":{"replicas":4}}`)})
		t.ask("apply scale", Request{
			Method: "PATCH", Path: path + "?fieldManager=scaler&force=true", ContentType: applies, Accept: jsonType,
			Body: t.change(t.change(scale, "spec.replicas", 5), "metadata", map[string]any{"name": t.Name}),
		})
		t.ask("scale to nonsense", Request{Method: "PATCH", Path: path, ContentType: merges, Accept: jsonType, Body: []byte(`{"spec":{"replicas":-1}}`)})
	}
}

func (t *teller) watchInitial() {
	if !t.Can("watch") {
		return
	}
	query := t.selected("watch=1", "sendInitialEvents=true", "allowWatchBookmarks=true", "resourceVersionMatch=NotOlderThan")
	for _, name := range []string{"JSON", "protobuf", "table", "metadata", "YAML", "CBOR"} {
		t.watch("watch from the initial events as "+name, Request{Method: "GET", Path: t.Path() + query, Accept: t.encodings(partialOf)[name]},
			"k8s.io/initial-events-end", 1)
	}
}
