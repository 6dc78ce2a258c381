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
	jsonType       = "application/json"
	yamlType       = "application/yaml"
	cborType       = "application/cbor"
	tableOf        = ";as=Table;v=v1;g=meta.k8s.io"
	partialOf      = ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	partialListOf  = ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	jsonPatch      = "application/json-patch+json"
	mergePatch     = "application/merge-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
	applyPatch     = "application/apply-patch+yaml"
)

// Scenario is all requests of one object of a kind, with their answers.
type Scenario struct {
	Kind      string
	Exchanges []Exchange
}

// RunScenario sends the requests that clients make of an object of a kind, from before its creation to after its deletion, and
// returns the exchanges. The requests are the same for each server, so that the answers can be compared.
func RunScenario(ctx context.Context, server Server, k Kind) (Scenario, error) {
	t := &recorder{session: session{ctx: ctx, server: server}, Kind: k}
	t.recordMissing()
	t.recordCreate()
	t.recordReads()
	t.recordUpdates()
	t.recordPatches()
	t.recordApply()
	t.recordSubresources()
	t.recordInitialWatch()
	t.recordDelete()
	t.recordOtherEncodings()
	t.recordHistory()
	if t.err != nil {
		return Scenario{}, fmt.Errorf("%s: %w", k, t.err)
	}
	return Scenario{Kind: k.String(), Exchanges: t.exchanges}, nil
}

// recorder runs one scenario against one server and keeps the exchanges.
type recorder struct {
	session
	Kind
	startVersion string // resource version before the object was created
	deletions    int    // how often it was deleted
}

func (t *recorder) objectPath() string { return t.Path() + "/" + t.Name }

// selectObject returns the query that selects this object alone.
func (t *recorder) selectObject(more ...string) string {
	return "?" + strings.Join(append([]string{"fieldSelector=" + url.QueryEscape("metadata.name="+t.Name)}, more...), "&")
}

// encodings returns the media types in which an object is requested. CBOR is refused, as by upstream.
func (t *recorder) encodings(table string) map[string]string {
	out := map[string]string{
		"JSON": jsonType, "YAML": yamlType, "CBOR": cborType, "table": jsonType + tableOf,
		"metadata": jsonType + table, "metadata in protobuf": protobufType + table,
		"protobuf": protobufType, "protobuf or JSON": protobufType + "," + jsonType, "table or JSON": jsonType + tableOf + "," + jsonType,
		"table in YAML": yamlType + tableOf, "unknown": "text/html", "any": "*/*",
	}
	return out
}

func (t *recorder) recordMissing() {
	a := t.send(Request{Method: "GET", Path: t.Path() + "?limit=1", Accept: jsonType})
	if a.Status != 200 && t.err == nil {
		t.fail("list: %d %s", a.Status, a.Body)
	}
	t.startVersion = jsonField(a.Body, "metadata", "resourceVersion")
	t.record("get what is not there", Request{Method: "GET", Path: t.objectPath(), Accept: jsonType})
	t.record("delete what is not there", Request{Method: "DELETE", Path: t.objectPath(), Accept: jsonType})
	t.record("patch what is not there", Request{Method: "PATCH", Path: t.objectPath(), ContentType: mergePatch, Body: []byte(`{}`)})
	t.record("list nothing", Request{Method: "GET", Path: t.Path() + t.selectObject(), Accept: jsonType})
}

func (t *recorder) post(name, query, contentType, accept string) Answer {
	return t.record(name, Request{
		Method: "POST", Path: t.Path() + "?fieldManager=corpus" + query, Accept: accept,
		ContentType: contentType, Body: t.encodeAs(contentType, []byte(t.Object)),
	})
}

func (t *recorder) recordCreate() {
	t.post("create, dry run", "&dryRun=All&fieldValidation=Strict", jsonType, jsonType)
	t.post("create", "&fieldValidation=Strict", jsonType, jsonType)
	t.currentObject()
	t.post("create what is there", "", jsonType, jsonType)
	t.post("create what is there, answer in YAML", "", jsonType, yamlType)
	odd := t.setField([]byte(t.Object), "odd", 1)
	odd = t.setField(odd, "metadata.name", "odd")
	for _, validation := range []string{"Strict", "Warn", "Ignore"} {
		t.record("create with an unknown field, validation "+validation, Request{
			Method: "POST", Path: t.Path() + "?dryRun=All&fieldValidation=" + validation, ContentType: jsonType, Accept: jsonType, Body: odd,
		})
	}
	t.record("create of another kind", Request{
		Method: "POST", Path: t.Path(), ContentType: jsonType, Accept: jsonType, Body: t.setField([]byte(t.Object), "kind", "Other"),
	})
	t.record("create without a name", Request{
		Method: "POST", Path: t.Path() + "?dryRun=All", ContentType: jsonType, Accept: jsonType, Body: t.setField([]byte(t.Object), "metadata.name", ""),
	})
	t.record("create with a bad name and label", Request{
		Method: "POST", Path: t.Path() + "?dryRun=All", ContentType: jsonType, Accept: jsonType,
		Body: t.setField(t.setField([]byte(t.Object), "metadata.name", "B*d/"), "metadata.labels", map[string]any{"b d": "*"}),
	})
	t.record("create in CBOR", Request{Method: "POST", Path: t.Path(), ContentType: cborType, Accept: jsonType, Body: []byte{0xd9, 0xd9, 0xf7, 0xa0}})
	t.record("create from no JSON", Request{Method: "POST", Path: t.Path(), ContentType: jsonType, Accept: jsonType, Body: []byte(`{"kind":`)})
}

func (t *recorder) recordReads() {
	for _, name := range sortedKeys(t.encodings(partialOf)) {
		t.record("get as "+name, Request{Method: "GET", Path: t.objectPath(), Accept: t.encodings(partialOf)[name]})
	}
	for _, name := range sortedKeys(t.encodings(partialListOf)) {
		t.record("list as "+name, Request{Method: "GET", Path: t.Path() + t.selectObject(), Accept: t.encodings(partialListOf)[name]})
	}
	t.record("get, pretty", Request{Method: "GET", Path: t.objectPath() + "?pretty=1", Accept: jsonType})
	t.record("get a table with whole objects", Request{Method: "GET", Path: t.objectPath() + "?includeObject=Object", Accept: jsonType + tableOf})
	t.record("list a table without objects", Request{Method: "GET", Path: t.Path() + t.selectObject("includeObject=None"), Accept: jsonType + tableOf})
	t.record("list by label", Request{Method: "GET", Path: t.Path() + "?labelSelector=" + url.QueryEscape("corpus in (true),example.com/label,!other"), Accept: jsonType})
	t.record("list at any version", Request{Method: "GET", Path: t.Path() + t.selectObject("resourceVersion=0"), Accept: jsonType})
	t.record("list with a bad label selector", Request{Method: "GET", Path: t.Path() + "?labelSelector=" + url.QueryEscape("a in (b"), Accept: jsonType})
	t.record("list with a bad field selector", Request{Method: "GET", Path: t.Path() + "?fieldSelector=spec.nothing%3Da", Accept: jsonType})
	t.record("list at a bad version", Request{Method: "GET", Path: t.Path() + "?resourceVersion=x", Accept: jsonType})
	t.record("list with a bad match", Request{Method: "GET", Path: t.Path() + "?resourceVersionMatch=Exact", Accept: jsonType})
	t.record("list with a bad continue", Request{Method: "GET", Path: t.Path() + "?limit=1&continue=x", Accept: jsonType})
	t.record("list from the future", Request{Method: "GET", Path: t.Path() + "?resourceVersion=9000000000&resourceVersionMatch=Exact&limit=1", Accept: jsonType})
	t.record("watch at a bad version", Request{Method: "GET", Path: t.Path() + "?watch=1&resourceVersion=x", Accept: jsonType})
	t.record("no such subresource", Request{Method: "GET", Path: t.objectPath() + "/nothing", Accept: jsonType})
	t.record("a method that is not there", Request{Method: "POST", Path: t.objectPath(), Accept: jsonType, ContentType: jsonType, Body: []byte(t.Object)})
}

// settleTime is how long an object that the server's controllers write to must not change before the scenario continues.
const settleTime = 150 * time.Millisecond

// currentObject returns the object as it is now, in JSON.
func (t *recorder) currentObject() []byte {
	get := Request{Method: "GET", Path: t.objectPath(), Accept: jsonType}
	now := t.send(get).Body
	for range 20 {
		if !t.writtenByServer() {
			break
		}
		select {
		case <-time.After(settleTime):
		case <-t.ctx.Done():
		}
		before := now
		if now = t.send(get).Body; bytes.Equal(before, now) {
			break
		}
	}
	return now
}

func (t *recorder) put(name, query, contentType, accept string, object []byte) {
	t.record(name, Request{
		Method: "PUT", Path: t.objectPath() + "?fieldManager=corpus" + query, Accept: accept, ContentType: contentType, Body: t.encodeAs(contentType, object),
	})
}

func (t *recorder) recordUpdates() {
	old := t.currentObject()
	t.put("update without a change", "", jsonType, jsonType, old)
	t.put("update in JSON", "", jsonType, jsonType, t.setField(t.currentObject(), "metadata.annotations.json", "1"))
	t.put("update of an old version", "", jsonType, jsonType, t.setField(old, "metadata.annotations.old", "1"))
	t.put("update, dry run", "&dryRun=All", jsonType, jsonType, t.setField(t.currentObject(), "metadata.annotations.dry", "1"))
	t.put("update in YAML", "", yamlType, yamlType, t.setField(t.currentObject(), "metadata.annotations.yaml", "1"))
	if !t.Custom {
		t.put("update in protobuf", "", protobufType, protobufType, t.setField(t.currentObject(), "metadata.annotations.protobuf", "1"))
	}
	t.put("update with another name", "", jsonType, jsonType, t.setField(t.currentObject(), "metadata.name", "other"))
	t.put("update with another UID", "", jsonType, jsonType, t.setField(t.currentObject(), "metadata.uid", "other"))
	t.put("update without a version", "", jsonType, jsonType, t.setField(t.setField(t.currentObject(), "metadata.resourceVersion", ""), "metadata.annotations.any", "1"))
}

func (t *recorder) recordPatches() {
	send := func(name, query, contentType, accept, body string) {
		t.record("patch: "+name, Request{Method: "PATCH", Path: t.objectPath() + "?fieldManager=corpus" + query, ContentType: contentType, Accept: accept, Body: []byte(body)})
	}
	send("JSON patch", "", jsonPatch, jsonType, `[{"op":"test","path":"/metadata/name","value":"`+t.Name+`"},{"op":"add","path":"/metadata/annotations/patched","value":"j"}]`)
	send("merge", "", mergePatch, jsonType, `{"metadata":{"annotations":{"merged":"m","json":null}}}`)
	send("strategic", "", strategicPatch, protobufType+","+jsonType, `{"metadata":{"annotations":{"strategic":"s"},"ownerReferences":[{"uid":"another","name":"b","kind":"B","apiVersion":"v1"}]}}`)
	send("strategic, taking away", "", strategicPatch, jsonType, `{"metadata":{"ownerReferences":[{"$patch":"delete","uid":"another"}]}}`)
	send("dry run", "&dryRun=All", mergePatch, jsonType, `{"metadata":{"labels":{"dry":"run"}}}`)
	send("a table", "", mergePatch, jsonType+tableOf, `{"metadata":{"labels":{"seen":"table"}}}`)
	send("a test that fails", "", jsonPatch, jsonType, `[{"op":"test","path":"/metadata/name","value":"x"}]`)
	send("no patch", "", jsonPatch, jsonType, `{"op":"test"}`)
	send("no JSON", "", mergePatch, jsonType, `{"metadata`)
	send("an unknown field", "&fieldValidation=Strict", mergePatch, jsonType, `{"odd":1}`)
	send("an unknown field, a warning", "&fieldValidation=Warn", mergePatch, jsonType, `{"odd":1}`)
	send("what does not change", "", mergePatch, jsonType, `{"metadata":{"name":"other"}}`)
	send("of an unknown kind", "", "application/unknown", jsonType, `{}`)
	send("in CBOR", "", "application/apply-patch+cbor", jsonType, `{}`)
}

func (t *recorder) recordApply() {
	body := func(more string) string {
		return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata:\n  name: %q\n%s", t.APIVersion(), t.Kind.Kind, t.Name, more)
	}
	send := func(name, query, text string) {
		t.record("apply: "+name, Request{Method: "PATCH", Path: t.objectPath() + "?" + query, ContentType: applyPatch, Accept: jsonType, Body: []byte(text)})
	}
	send("without a manager", "", body(""))
	send("two fields", "fieldManager=one", body("  annotations:\n    applied: \"1\"\n    also: \"1\"\n"))
	send("a conflict", "fieldManager=two", body("  annotations:\n    applied: \"2\"\n"))
	send("forced", "fieldManager=two&force=true", body("  annotations:\n    applied: \"2\"\n"))
	send("no longer", "fieldManager=one", body(""))
	send("dry run", "fieldManager=three&dryRun=All", body("  labels:\n    dry: run\n"))
	send("an unknown field", "fieldManager=one&fieldValidation=Strict", body("odd: 1\n"))
	send("managed fields", "fieldManager=one", body("  managedFields: [{manager: x}]\n"))
	send("the whole object", "fieldManager=whole&force=true", string(t.encodeAs(yamlType, []byte(t.Object))))
	t.currentObject()
	t.record("get what is managed, in protobuf", Request{Method: "GET", Path: t.objectPath(), Accept: protobufType + "," + jsonType})
}

func (t *recorder) recordSubresources() {
	if t.HasSubresource("status") {
		path := t.objectPath() + "/status"
		t.record("get status", Request{Method: "GET", Path: path, Accept: jsonType})
		if t.Status != "" {
			t.record("update status", Request{
				Method: "PUT", Path: path + "?fieldManager=corpus", ContentType: jsonType, Accept: jsonType, Body: t.setField(t.currentObject(), "status", rawJSON(t.Status)),
			})
		}
		t.record("patch status", Request{Method: "PATCH", Path: path, ContentType: mergePatch, Accept: jsonType, Body: []byte(`{"status":null,"metadata":{"annotations":{"status":"s"}}}`)})
		if t.Status != "" {
			t.record("apply status", Request{
				Method: "PATCH", Path: path + "?fieldManager=status&force=true", ContentType: applyPatch, Accept: jsonType,
				Body: t.setField([]byte(fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q}}`, t.APIVersion(), t.Kind.Kind, t.Name)), "status", rawJSON(t.Status)),
			})
		}
		t.currentObject()
		for _, name := range []string{"JSON", "YAML", "protobuf", "table", "metadata"} {
			t.record("get with status as "+name, Request{Method: "GET", Path: t.objectPath(), Accept: t.encodings(partialOf)[name]})
		}
	}
	if t.HasSubresource("scale") {
		path := t.objectPath() + "/scale"
		t.record("get scale", Request{Method: "GET", Path: path, Accept: jsonType})
		t.record("get scale in protobuf", Request{Method: "GET", Path: path, Accept: protobufType})
		scale := t.send(Request{Method: "GET", Path: path, Accept: jsonType}).Body
		t.record("update scale", Request{Method: "PUT", Path: path, ContentType: jsonType, Accept: jsonType, Body: t.setField(scale, "spec.replicas", 3)})
		t.record("patch scale", Request{Method: "PATCH", Path: path, ContentType: mergePatch, Accept: jsonType, Body: []byte(`{"spec":{"replicas":4}}`)})
		t.record("apply scale", Request{
			Method: "PATCH", Path: path + "?fieldManager=scaler&force=true", ContentType: applyPatch, Accept: jsonType,
			Body: t.setField(t.setField(scale, "spec.replicas", 5), "metadata", map[string]any{"name": t.Name}),
		})
		t.record("scale to nonsense", Request{Method: "PATCH", Path: path, ContentType: mergePatch, Accept: jsonType, Body: []byte(`{"spec":{"replicas":-1}}`)})
	}
}

func (t *recorder) recordInitialWatch() {
	if !t.HasVerb("watch") {
		return
	}
	query := t.selectObject("watch=1", "sendInitialEvents=true", "allowWatchBookmarks=true", "resourceVersionMatch=NotOlderThan")
	for _, name := range []string{"JSON", "protobuf", "table", "metadata", "YAML", "CBOR"} {
		t.recordWatch("watch from the initial events as "+name, Request{Method: "GET", Path: t.Path() + query, Accept: t.encodings(partialOf)[name]},
			"k8s.io/initial-events-end", 1)
	}
}
