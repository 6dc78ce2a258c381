package apis_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	restclient "k8s.io/client-go/rest"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/controltest"
	"github.com/balsahq/balsa/control/legacy/apis"
)

const pod = `{"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}`

// manifests are an object of each kind in each old version, and the same object as people write it today.
var manifests = []struct {
	old, served, resource, kind string
	cluster                     bool
	oldFields, servedFields     string
}{
	{"extensions/v1beta1", "apps/v1", "deployments", "Deployment", false, `"spec": {"template": ` + pod + `}`,
		`"spec": {"selector": {"matchLabels": {"app": "a"}}, "revisionHistoryLimit": 2147483647, "progressDeadlineSeconds": 2147483647, "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}, "template": ` + pod + `}`},
	{"extensions/v1beta1", "apps/v1", "daemonsets", "DaemonSet", false, `"spec": {"template": ` + pod + `}`,
		`"spec": {"selector": {"matchLabels": {"app": "a"}}, "updateStrategy": {"type": "OnDelete"}, "template": ` + pod + `}`},
	{"extensions/v1beta1", "apps/v1", "replicasets", "ReplicaSet", false, `"spec": {"template": ` + pod + `}`, `"spec": {"selector": {"matchLabels": {"app": "a"}}, "template": ` + pod + `}`},
	{"extensions/v1beta1", "networking.k8s.io/v1", "ingresses", "Ingress", false,
		`"spec": {"backend": {"serviceName": "d", "servicePort": 80}, "rules": [{"host": "a.example", "http": {"paths": [{"path": "/x", "backend": {"serviceName": "web", "servicePort": "http"}}]}}]}`,
		`"spec": {"defaultBackend": {"service": {"name": "d", "port": {"number": 80}}}, "rules": [{"host": "a.example", "http": {"paths": [{"path": "/x", "pathType": "ImplementationSpecific", "backend": {"service": {"name": "web", "port": {"name": "http"}}}}]}}]}`},
	{"extensions/v1beta1", "networking.k8s.io/v1", "networkpolicies", "NetworkPolicy", false, `"spec": {"podSelector": {}}`, `"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}`},
	{"apps/v1beta1", "apps/v1", "statefulsets", "StatefulSet", false, `"spec": {"serviceName": "s", "template": ` + pod + `}`,
		`"spec": {"serviceName": "s", "selector": {"matchLabels": {"app": "a"}}, "updateStrategy": {"type": "OnDelete"}, "template": ` + pod + `}`},
	{"apps/v1beta1", "apps/v1", "deployments", "Deployment", false, `"spec": {"template": ` + pod + `}`,
		`"spec": {"selector": {"matchLabels": {"app": "a"}}, "revisionHistoryLimit": 2, "template": ` + pod + `}`},
	{"apps/v1beta2", "apps/v1", "daemonsets", "DaemonSet", false, `"spec": {"selector": {"matchLabels": {"app": "a"}}, "template": ` + pod + `}`, `"spec": {"selector": {"matchLabels": {"app": "a"}}, "template": ` + pod + `}`},
	{"apps/v1beta2", "apps/v1", "controllerrevisions", "ControllerRevision", false, `"data": {"a": 1}, "revision": 3`, `"data": {"a": 1}, "revision": 3`},
	{"batch/v2alpha1", "batch/v1", "cronjobs", "CronJob", false, cron, cron},
	{"batch/v1beta1", "batch/v1", "cronjobs", "CronJob", false, cron, cron},
	{"networking.k8s.io/v1beta1", "networking.k8s.io/v1", "ingresses", "Ingress", false, `"spec": {"backend": {"serviceName": "d", "servicePort": 80}}`, `"spec": {"defaultBackend": {"service": {"name": "d", "port": {"number": 80}}}}`},
	{"networking.k8s.io/v1beta1", "networking.k8s.io/v1", "ingressclasses", "IngressClass", true, `"spec": {"controller": "e.example/c"}`, `"spec": {"controller": "e.example/c"}`},
	{"node.k8s.io/v1beta1", "node.k8s.io/v1", "runtimeclasses", "RuntimeClass", true, `"handler": "myconfiguration"`, `"handler": "myconfiguration"`},
	{"rbac.authorization.k8s.io/v1beta1", "rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole", true, rules, rules},
	{"rbac.authorization.k8s.io/v1beta1", "rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding", false, binding, binding},
	{"scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", true, `"value": 5`, `"value": 5`},
	{"policy/v1beta1", "policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", false, `"spec": {"minAvailable": 1, "selector": {}}`,
		`"spec": {"minAvailable": 1, "selector": {"matchExpressions": [{"key": "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match", "operator": "Exists"}]}}`},
	{"apiextensions.k8s.io/v1beta1", "apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition", true,
		`"spec": {"group": "GROUP", "version": "v1", "scope": "Namespaced", "names": {"plural": "networks", "kind": "Network"}}`,
		`"spec": {"group": "GROUP", "scope": "Namespaced", "names": {"plural": "networks", "kind": "Network"}, "versions": [{"name": "v1", "served": true, "storage": true,
			"schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}`},
}

const (
	cron    = `"spec": {"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}}`
	rules   = `"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]`
	binding = `"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}, "subjects": [{"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"}]`
)

type world struct {
	*controltest.Server
	admin *http.Client
}

func newWorld(t *testing.T, enabled bool) *world {
	t.Helper()
	s := controltest.Start(t, func(c *control.Config) { c.LegacyAPIs = enabled })
	client, err := restclient.HTTPClientFor(s.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	return &world{Server: s, admin: client}
}

// answer is what a request got.
type answer struct {
	code     int
	warnings []string
	text     string
}

func (a answer) object(t *testing.T) map[string]any {
	t.Helper()
	o := map[string]any{}
	if err := json.Unmarshal([]byte(a.text), &o); err != nil {
		t.Fatalf("%v: %s", err, a.text)
	}
	return o
}

// ask sends a request as user, or as the administrator when user is empty.
func (w *world) ask(t *testing.T, user, method, path, contentType, body string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "https://"+w.Address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	if user != "" {
		req.Header.Set("Impersonate-User", user)
	}
	resp, err := w.admin.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header.Values("Warning"), string(text)}
}

func (w *world) must(t *testing.T, code int, method, path, contentType, body string) answer {
	t.Helper()
	a := w.ask(t, "", method, path, contentType, body)
	if a.code != code {
		t.Fatalf("%s %s: %d, want %d: %s", method, path, a.code, code, a.text)
	}
	return a
}

func collection(version, resource string, cluster bool) string {
	if cluster {
		return "/apis/" + version + "/" + resource
	}
	return "/apis/" + version + "/namespaces/default/" + resource
}

// withoutIdentity leaves of an object what two objects of one manifest have in common.
func withoutIdentity(o map[string]any) map[string]any {
	o = maps.Clone(o)
	delete(o, "metadata")
	delete(o, "status")
	return o
}

const asJSON = "application/json"

func TestOldVersions(t *testing.T) {
	w := newWorld(t, true)
	t.Run("objects are stored as those of today and read in both versions", w.lives)
	t.Run("rights are those on the served version", w.rights)
	t.Run("discovery shows them last", w.discovered)
	t.Run("watches are converted", w.watched)
	t.Run("unknown fields and wrong versions are refused", w.refused)
	t.Run("definitions of protected groups are approved as unapproved", w.protectedGroup)
}

// lives creates every manifest in the old version and its twin in the served one, and compares what is stored.
func (w *world) lives(t *testing.T) {
	for i, m := range manifests {
		t.Run(m.old+" "+m.kind, func(t *testing.T) {
			of := func(version, name, fields string) string {
				if m.kind == "CustomResourceDefinition" {
					group := name + ".example"
					name, fields = "networks."+group, strings.ReplaceAll(fields, "GROUP", group)
				}
				return fmt.Sprintf(`{"apiVersion": %q, "kind": %q, "metadata": {"name": %q}, %s}`, version, m.kind, name, fields)
			}
			old, twin := fmt.Sprintf("old-%d", i), fmt.Sprintf("twin-%d", i)
			oldPath, path := collection(m.old, m.resource, m.cluster), collection(m.served, m.resource, m.cluster)
			created := w.must(t, 201, "POST", oldPath, asJSON, of(m.old, old, m.oldFields))
			if got := created.object(t); got["apiVersion"] != m.old || got["kind"] != m.kind {
				t.Errorf("the answer is %s %s", got["apiVersion"], got["kind"])
			}
			if len(created.warnings) != 1 || !strings.Contains(created.warnings[0], m.served) {
				t.Errorf("warnings %q, want one that names %s", created.warnings, m.served)
			}
			name := created.object(t)["metadata"].(map[string]any)["name"].(string)
			other := w.must(t, 201, "POST", path, asJSON, of(m.served, twin, m.servedFields)).object(t)["metadata"].(map[string]any)["name"].(string)
			stored, want := withoutIdentity(w.must(t, 200, "GET", path+"/"+name, "", "").object(t)), withoutIdentity(w.must(t, 200, "GET", path+"/"+other, "", "").object(t))
			text, wanted := strings.ReplaceAll(jsonOf(t, stored), old, twin), jsonOf(t, want)
			if text != wanted {
				t.Errorf("stored\n%s\nwant, as of today's manifest,\n%s", text, wanted)
			}
			w.keeps(t, m.old, oldPath, path, name)
		})
	}
}

func jsonOf(t *testing.T, o any) string {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// keeps reads, lists, updates, patches and deletes an object in the old version.
func (w *world) keeps(t *testing.T, old, oldPath, path, name string) {
	t.Helper()
	spec := func() map[string]any {
		return withoutIdentity(w.must(t, 200, "GET", path+"/"+name, "", "").object(t))
	}
	before := spec()
	read := w.must(t, 200, "GET", oldPath+"/"+name, "", "")
	if got := read.object(t)["apiVersion"]; got != old {
		t.Errorf("read as %s, want %s", got, old)
	}
	list := w.must(t, 200, "GET", oldPath, "", "").object(t)
	if list["apiVersion"] != old || len(list["items"].([]any)) == 0 {
		t.Errorf("the list is of %s with %d items", list["apiVersion"], len(list["items"].([]any)))
	}
	put := w.ask(t, "", "PUT", oldPath+"/"+name, asJSON, read.text)
	for attempt := 0; put.code == http.StatusConflict && attempt < 10; attempt++ { // its controller has written its status
		read = w.must(t, 200, "GET", oldPath+"/"+name, "", "")
		put = w.ask(t, "", "PUT", oldPath+"/"+name, asJSON, read.text)
	}
	if put.code != http.StatusOK {
		t.Fatalf("writing what was read: %d %s", put.code, put.text)
	}
	for kind, patch := range map[string]string{
		"application/merge-patch+json":           `{"apiVersion": "` + old + `", "metadata": {"labels": {"patched": "once"}}}`,
		"application/json-patch+json":            `[{"op": "add", "path": "/metadata/annotations", "value": {"json": "patch"}}]`,
		"application/strategic-merge-patch+json": `{"metadata": {"labels": {"strategic": "too"}}}`,
	} {
		if patched := w.must(t, 200, "PATCH", oldPath+"/"+name, kind, patch).object(t); patched["apiVersion"] != old {
			t.Errorf("%s was answered with %s", kind, patched["apiVersion"])
		}
	}
	meta := w.must(t, 200, "GET", path+"/"+name, "", "").object(t)["metadata"].(map[string]any)
	if got := jsonOf(t, meta["labels"]); !strings.Contains(got, `"patched":"once"`) || !strings.Contains(got, `"strategic":"too"`) || !strings.Contains(jsonOf(t, meta["annotations"]), `"json":"patch"`) {
		t.Errorf("after the patches the metadata is %v", meta)
	}
	if after := spec(); !reflect.DeepEqual(before, after) {
		t.Errorf("writing what was read, and patching labels, changed\n%v\nto\n%v", before, after)
	}
	w.must(t, 415, "PATCH", oldPath+"/"+name+"?fieldManager=m", "application/apply-patch+yaml", `{}`)
	w.must(t, 404, "PATCH", oldPath+"/absent", "application/merge-patch+json", `{}`)
	w.must(t, 200, "DELETE", oldPath+"/"+name, asJSON, `{"kind": "DeleteOptions", "apiVersion": "`+old+`", "propagationPolicy": "Background"}`)
}

// rights compares what three users may do: one with the right on the served resource, one with the right on the old
// group, one with none. Each user gets the same status on the old version's path as on the served version's path.
func (w *world) rights(t *testing.T) {
	rbac := "/apis/rbac.authorization.k8s.io/v1"
	for i, m := range manifests {
		oldGroup, group := strings.Split(m.old, "/")[0], strings.Split(m.served, "/")[0]
		verbs := `["create", "update", "patch", "delete", "deletecollection", "get", "list", "watch"]`
		for user, g := range map[string]string{"served": group, "old": oldGroup} {
			name := fmt.Sprintf("%s-%d", user, i)
			w.must(t, 201, "POST", rbac+"/clusterroles", asJSON, fmt.Sprintf(`{"metadata": {"name": %q}, "rules": [{"apiGroups": [%q], "resources": [%q], "verbs": %s}]}`, name, g, m.resource, verbs))
			w.must(t, 201, "POST", rbac+"/clusterrolebindings", asJSON, fmt.Sprintf(`{"metadata": {"name": %[1]q}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": %[1]q}, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": %[1]q}]}`, name))
		}
		oldPath, path := collection(m.old, m.resource, m.cluster), collection(m.served, m.resource, m.cluster)
		allowed := 0
		for _, user := range []string{"served", "old", "stranger"} {
			name := fmt.Sprintf("%s-%d", user, i)
			for _, ask := range []struct{ method, below, contentType, body string }{
				{"POST", "", asJSON, `{"metadata": 1}`}, {"PUT", "/absent", asJSON, `{"metadata": 1}`}, {"PATCH", "/absent", "application/merge-patch+json", `{}`},
				{"DELETE", "/absent", "", ""}, {"DELETE", "?labelSelector=a=b", "", ""}, {"GET", "/absent", "", ""}, {"GET", "", "", ""}, {"GET", "?watch=1&timeoutSeconds=1&labelSelector=x=y&resourceVersion=1000000000000", "", ""},
			} {
				if strings.Contains(ask.below, "watch") && (user == "served" || user == "old" && oldGroup == group) {
					continue // it would be open for a second; another test watches
				}
				got, want := w.ask(t, name, ask.method, oldPath+ask.below, ask.contentType, ask.body), w.ask(t, name, ask.method, path+ask.below, ask.contentType, ask.body)
				if got.code != want.code {
					t.Errorf("%s: %s %s%s gives %d, of %s %d: %s", user, ask.method, oldPath, ask.below, got.code, m.served, want.code, got.text)
				}
				if got.code != http.StatusForbidden {
					allowed++
				}
			}
		}
		if least := 7; allowed < least {
			t.Errorf("%s: %d requests were allowed, want at least the %d of the user with the right", oldPath, allowed, least)
		}
	}
}

func (w *world) discovered(t *testing.T) {
	client := discovery.NewDiscoveryClientForConfigOrDie(w.AdminConfig())
	groups, resources, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	for _, gv := range apis.Versions() {
		i := slices.IndexFunc(groups, func(g *metav1.APIGroup) bool { return g.Name == gv.Group })
		if i < 0 || groups[i].PreferredVersion.GroupVersion == gv.String() && gv.Group != "extensions" {
			t.Errorf("%s: the group is missing, or prefers the old version", gv)
		}
		shown := slices.IndexFunc(resources, func(l *metav1.APIResourceList) bool { return l.GroupVersion == gv.String() })
		if shown < 0 {
			t.Fatalf("%s is not in the aggregated discovery", gv)
		}
		plain := metav1.APIResourceList{}
		if err := json.Unmarshal([]byte(w.must(t, 200, "GET", "/apis/"+gv.String(), "", "").text), &plain); err != nil || !sameNames(plain.APIResources, resources[shown].APIResources) {
			t.Errorf("%s: /apis shows %v, the aggregated discovery %v (%v)", gv, plain.APIResources, resources[shown].APIResources, err)
		}
	}
	if last := groups[len(groups)-1].Name; last != "extensions" {
		t.Errorf("the last group is %s", last)
	}
	for _, group := range []string{"extensions", "apps"} {
		if text := w.must(t, 200, "GET", "/apis/"+group, "", "").text; !strings.Contains(text, group+"/v1beta1") {
			t.Errorf("/apis/%s is %s", group, text)
		}
	}
	if text := w.must(t, 200, "GET", "/openapi/v3", "", "").text; strings.Contains(text, "extensions/v1beta1") {
		t.Error("OpenAPI shows an old version without its kinds")
	}
}

func sameNames(a, b []metav1.APIResource) bool {
	names := func(list []metav1.APIResource) (out []string) {
		for _, r := range list {
			out = append(out, r.Name+" "+r.Kind)
		}
		slices.Sort(out)
		return out
	}
	return slices.Equal(names(a), names(b))
}

func (w *world) watched(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", "https://"+w.Address+"/apis/extensions/v1beta1/namespaces/default/ingresses?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := w.admin.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	w.must(t, 201, "POST", "/apis/networking.k8s.io/v1/namespaces/default/ingresses", asJSON, `{"metadata": {"name": "seen"}, "spec": {"defaultBackend": {"service": {"name": "d", "port": {"number": 80}}}}}`)
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if line := lines.Text(); strings.Contains(line, `"seen"`) {
			if !strings.HasPrefix(line, `{"type":"ADDED"`) || !strings.Contains(line, `"apiVersion":"extensions/v1beta1"`) || !strings.Contains(line, `"serviceName":"d"`) {
				t.Errorf("the event is %s", line)
			}
			return
		}
	}
	t.Errorf("the watch ended without the event: %v", lines.Err())
}

func (w *world) refused(t *testing.T) {
	path := "/apis/apps/v1beta1/namespaces/default/deployments"
	unknown := `{"apiVersion": "apps/v1beta1", "kind": "Deployment", "metadata": {"name": "unknown"}, "spec": {"colour": 1, "template": ` + pod + `}}`
	if a := w.must(t, 400, "POST", path+"?fieldValidation=Strict", asJSON, unknown); !strings.Contains(a.text, `unknown field`) {
		t.Error(a.text)
	}
	if a := w.must(t, 201, "POST", path+"?dryRun=All", asJSON, unknown); len(a.warnings) != 2 {
		t.Errorf("warnings %q, want one of the version and one of the field", a.warnings)
	}
	w.must(t, 400, "POST", path, asJSON, strings.ReplaceAll(unknown, "apps/v1beta1", "apps/v1"))
	w.must(t, 415, "POST", path, "text/plain", unknown)
	w.must(t, 404, "GET", "/apis/extensions/v1beta1/podsecuritypolicies", "", "")
	w.must(t, 422, "POST", path, asJSON, `{"apiVersion": "apps/v1beta1", "kind": "Deployment", "metadata": {"name": "invalid"}, "spec": {"template": {}}}`)
	yaml := "apiVersion: apps/v1beta1\nkind: Deployment\nmetadata: {name: yaml}\nspec: {template: " + pod + "}\n"
	w.must(t, 201, "POST", path, "application/yaml", yaml)
	if scale := w.must(t, 200, "GET", path+"/yaml/scale", "", "").object(t); scale["kind"] != "Scale" || scale["apiVersion"] != "autoscaling/v1" {
		t.Errorf("the scale is %v", scale)
	}
	large := bytes.Repeat([]byte(" "), 4<<20)
	w.must(t, 413, "POST", path, asJSON, string(large))
}

func (w *world) protectedGroup(t *testing.T) {
	const name = "networks.samplecrd.k8s.io"
	w.must(t, 201, "POST", "/apis/apiextensions.k8s.io/v1beta1/customresourcedefinitions", asJSON, `{"apiVersion": "apiextensions.k8s.io/v1beta1", "kind": "CustomResourceDefinition",
		"metadata": {"name": "`+name+`"}, "spec": {"group": "samplecrd.k8s.io", "version": "v1", "names": {"kind": "Network", "plural": "networks"}, "scope": "Namespaced"}}`)
	crd := apiextensionsv1.CustomResourceDefinition{}
	if err := json.Unmarshal([]byte(w.must(t, 200, "GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+name, "", "").text), &crd); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(crd.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation], "unapproved") {
		t.Errorf("the annotations are %v", crd.Annotations)
	}
}

func TestOldVersionsAreAbsentUnlessAskedFor(t *testing.T) {
	w := newWorld(t, false)
	for _, gv := range apis.Versions() {
		w.must(t, 404, "GET", "/apis/"+gv.String(), "", "")
	}
	_, lists, err := discovery.NewDiscoveryClientForConfigOrDie(w.AdminConfig()).ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil || slices.Contains(apis.Versions(), gv) {
			t.Errorf("discovery shows %s (%v)", list.GroupVersion, err)
		}
	}
	w.must(t, 404, "POST", "/apis/extensions/v1beta1/namespaces/default/ingresses", asJSON, `{}`)
}
