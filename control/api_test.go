package control_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/discovery"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/balsahq/balsa/control"
)

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"test": name}}, Data: data}
}

func namespace(t *testing.T) string {
	t.Helper()
	ctx, client := testContext(t), clientset(t, shared.admin())
	ns, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

func TestObjectLivesThroughAllVerbs(t *testing.T) {
	for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		t.Run(contentType, func(t *testing.T) {
			config := shared.admin()
			config.ContentType = contentType
			ctx, maps := testContext(t), clientset(t, config).CoreV1().ConfigMaps(namespace(t))
			made, err := maps.Create(ctx, configMap("a", map[string]string{"k": "1"}), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if made.UID == "" || made.ResourceVersion == "" || len(made.ManagedFields) != 1 {
				t.Errorf("server has not filled in metadata: %+v", made.ObjectMeta)
			}
			w, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: made.ResourceVersion, LabelSelector: "test=a"})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			made.Data["k"] = "2"
			updated, err := maps.Update(ctx, made, metav1.UpdateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := maps.Update(ctx, made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
				t.Errorf("update of an old version: %v, want a conflict", err)
			}
			for _, p := range []struct {
				kind types.PatchType
				body string
			}{
				{types.MergePatchType, `{"data":{"m":"1"}}`},
				{types.StrategicMergePatchType, `{"data":{"s":"1"}}`},
				{types.JSONPatchType, `[{"op":"add","path":"/data/j","value":"1"}]`},
			} {
				if updated, err = maps.Patch(ctx, "a", p.kind, []byte(p.body), metav1.PatchOptions{}); err != nil {
					t.Errorf("%s: %v", p.kind, err)
				}
			}
			if len(updated.Data) != 4 {
				t.Errorf("after patches: %v", updated.Data)
			}
			if err := maps.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")}); !apierrors.IsConflict(err) {
				t.Errorf("delete of another UID: %v, want a conflict", err)
			}
			if err := maps.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			want := []watch.EventType{watch.Modified, watch.Modified, watch.Modified, watch.Modified, watch.Deleted}
			for i, kind := range want {
				if e := <-w.ResultChan(); e.Type != kind {
					t.Fatalf("event %d is %v, want %v", i, e.Type, kind)
				}
			}
		})
	}
}

func TestServerSideApplyOwnsFields(t *testing.T) {
	ctx, maps := testContext(t), clientset(t, shared.admin()).CoreV1().ConfigMaps(namespace(t))
	apply := func(manager, value string, force bool) (*corev1.ConfigMap, error) {
		c := applycorev1.ConfigMap("a", "").WithData(map[string]string{"k": value})
		return maps.Apply(ctx, c, metav1.ApplyOptions{FieldManager: manager, Force: force})
	}
	if _, err := apply("one", "1", false); err != nil {
		t.Fatal(err)
	}
	if _, err := apply("two", "2", false); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "one"`) {
		t.Errorf("taking a field of another: %v, want a conflict with its manager", err)
	}
	got, err := apply("two", "2", true)
	if err != nil {
		t.Fatal(err)
	}
	if got.Data["k"] != "2" {
		t.Errorf("forced apply left %q", got.Data["k"])
	}
	if got, err = maps.Apply(ctx, applycorev1.ConfigMap("a", ""), metav1.ApplyOptions{FieldManager: "two"}); err != nil {
		t.Fatal(err)
	}
	if _, still := got.Data["k"]; still {
		t.Error("a field its only manager no longer applies is still there")
	}
}

func TestDryRunWritesNothing(t *testing.T) {
	ctx, maps := testContext(t), clientset(t, shared.admin()).CoreV1().ConfigMaps(namespace(t))
	if _, err := maps.Create(ctx, configMap("a", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after a dry run: %v, want not found", err)
	}
}

func TestListInPages(t *testing.T) {
	ctx, maps := testContext(t), clientset(t, shared.admin()).CoreV1().ConfigMaps(namespace(t))
	for i := range 7 {
		if _, err := maps.Create(ctx, configMap(fmt.Sprintf("c%d", i), nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	options := metav1.ListOptions{Limit: 3}
	for pages := 0; ; pages++ {
		list, err := maps.List(ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list.Items {
			names = append(names, m.Name)
		}
		if options.Continue = list.Continue; list.Continue == "" {
			if pages != 2 {
				t.Errorf("%d pages more, want 2", pages)
			}
			break
		}
	}
	if len(names) != 7 {
		t.Errorf("pages held %v", names)
	}
	if _, err := maps.List(ctx, metav1.ListOptions{Continue: "nonsense"}); !apierrors.IsBadRequest(err) {
		t.Errorf("nonsense continue token: %v, want bad request", err)
	}
}

func TestDeleteCollectionBySelector(t *testing.T) {
	ctx, maps := testContext(t), clientset(t, shared.admin()).CoreV1().ConfigMaps(namespace(t))
	for _, n := range []string{"a", "b"} {
		if _, err := maps.Create(ctx, configMap(n, nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "test=a"}); err != nil {
		t.Fatal(err)
	}
	if list, err := maps.List(ctx, metav1.ListOptions{LabelSelector: "test"}); err != nil || len(list.Items) != 1 || list.Items[0].Name != "b" {
		t.Errorf("left over: %v, %v", list, err)
	}
}

// raw does one request with the administrator's certificate.
func raw(t *testing.T, method, path, contentType, accept, body string) (int, http.Header, string) {
	t.Helper()
	transport, err := restclient.TransportFor(shared.admin())
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(testContext(t), method, "https://"+shared.address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Accept", accept)
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(data)
}

const deploymentYAML = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: nginx}]}
`

func TestManifestInYAMLIsDefaultedAndShownAsTable(t *testing.T) {
	ns := namespace(t)
	path := "/apis/apps/v1/namespaces/" + ns + "/deployments"
	if code, _, body := raw(t, "POST", path, "application/yaml", "application/json", deploymentYAML); code != 201 {
		t.Fatal(code, body)
	}
	d, err := clientset(t, shared.admin()).AppsV1().Deployments(ns).Get(testContext(t), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType || d.Spec.Template.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways {
		t.Errorf("defaults are missing: %+v", d.Spec)
	}
	code, _, body := raw(t, "GET", path, "", "application/json;as=Table;v=v1;g=meta.k8s.io", "")
	var table metav1.Table
	if err := json.Unmarshal([]byte(body), &table); err != nil || code != 200 {
		t.Fatal(code, err, body)
	}
	if len(table.Rows) != 1 || table.ColumnDefinitions[1].Name != "Ready" || table.Rows[0].Cells[1] != "0/2" {
		t.Errorf("table is %+v", table)
	}
	if code, _, body = raw(t, "GET", path+"/web", "", "application/yaml", ""); code != 200 || !strings.HasPrefix(body, "apiVersion: apps/v1\n") {
		t.Errorf("YAML answer: %d %s", code, body)
	}
}

func TestBadManifestsAreRefusedAsUpstreamRefusesThem(t *testing.T) {
	path := "/apis/apps/v1/namespaces/" + namespace(t) + "/deployments"
	for _, c := range []struct {
		name, query, contentType, body string
		code                           int
		want                           string
	}{
		{"unknown field, strict", "?fieldValidation=Strict", "application/yaml", strings.Replace(deploymentYAML, "replicas:", "replicaz:", 1), 400,
			`strict decoding error: unknown field \"spec.replicaz\"`},
		{"selector does not match", "", "application/yaml", strings.Replace(deploymentYAML, "matchLabels: {app: web}", "matchLabels: {app: other}", 1), 422,
			"`selector` does not match template `labels`"},
		{"no image", "", "application/yaml", strings.Replace(deploymentYAML, ", image: nginx", "", 1), 422, "spec.template.spec.containers[0].image: Required value"},
		{"wrong kind", "", "application/yaml", strings.Replace(deploymentYAML, "kind: Deployment", "kind: Pod", 1), 400, "no kind"},
		{"not YAML", "", "application/yaml", "a: [", 400, "did not find expected node content"},
		{"not JSON", "", "application/json", "{", 400, "unexpected end of JSON input"},
		{"not protobuf", "", "application/vnd.kubernetes.protobuf", "k8s\x00\xff\xff", 400, ""},
		{"empty", "", "application/json", "", 400, ""},
		{"unknown encoding", "", "application/xml", "<a/>", 415, "the body of the request was in an unknown format"},
		{"other namespace", "", "application/yaml", strings.Replace(deploymentYAML, "{name: web}", "{name: web, namespace: elsewhere}", 1), 400,
			"the namespace of the provided object does not match the namespace sent on the request"},
		{"too large", "", "application/json", `{"x":"` + strings.Repeat("a", 4<<20) + `"}`, 413, "Request entity too large: limit is 3145728"},
	} {
		code, _, body := raw(t, "POST", path+c.query, c.contentType, "application/json", c.body)
		if code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %.300s\nwant %d %s", c.name, code, body, c.code, c.want)
		}
	}
}

func TestUnknownPathsAreNotFound(t *testing.T) {
	for _, p := range []string{"/api/v2", "/apis/nothing.example.com/v1", "/api/v1/nothings", "/nothing", "/openapi/v3/apis/nothing/v1"} {
		if code, _, body := raw(t, "GET", p, "", "application/json", ""); code != 404 {
			t.Errorf("%s: %d %s", p, code, body)
		}
	}
	if code, _, _ := raw(t, "PUT", "/api/v1/namespaces/default/pods", "application/json", "*/*", "{}"); code != 405 {
		t.Errorf("PUT of a collection: %d, want 405", code)
	}
}

func TestAnonymousSeesHealthAndDiscoveryOnly(t *testing.T) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: shared.tls(), DisableKeepAlives: true}}
	for path, want := range map[string]int{
		"/livez": 200, "/readyz": 200, "/healthz": 200, "/version": 200,
		"/api/v1/pods": 401, "/api/v1/namespaces/default/secrets": 401, "/metrics": 401,
	} {
		res, err := client.Get("https://" + shared.address + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, res.StatusCode, want)
		}
	}
}

func TestUserWithoutRightsIsForbidden(t *testing.T) {
	ctx := testContext(t)
	client := clientset(t, shared.Client(control.Identity{User: "jane"}))
	_, err := client.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "jane" cannot list resource "secrets"`) {
		t.Errorf("got %v", err)
	}
}

func TestDiscoveryListsEveryKindOfUpstream(t *testing.T) {
	client := discovery.NewDiscoveryClientForConfigOrDie(shared.admin())
	_, lists, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]metav1.APIResource{}
	for _, l := range lists {
		group, _, _ := strings.Cut(l.GroupVersion, "/")
		if l.GroupVersion == "v1" {
			group = ""
		}
		for _, r := range l.APIResources {
			have[strings.TrimSuffix(r.Name+"."+group, ".")] = r
		}
	}
	for _, name := range strings.Fields(upstreamKinds) {
		if _, ok := have[name]; !ok {
			t.Errorf("%s is not served", name)
		}
	}
	for name, verbs := range map[string]int{"pods": 8, "namespaces": 7, "pods/status": 3, "deployments/scale.apps": 3, "pods/eviction": 1, "namespaces/finalize": 1} {
		if r := have[name]; len(r.Verbs) != verbs {
			t.Errorf("%s has verbs %v", name, r.Verbs)
		}
	}
	if r := have["deployments.apps"]; r.SingularName != "deployment" || r.ShortNames[0] != "deploy" || r.Categories[0] != "all" {
		t.Errorf("deployments: %+v", r)
	}
}

const upstreamKinds = `bindings certificatesigningrequests.certificates.k8s.io
clusterrolebindings.rbac.authorization.k8s.io clusterroles.rbac.authorization.k8s.io componentstatuses configmaps controllerrevisions.apps
cronjobs.batch csidrivers.storage.k8s.io csinodes.storage.k8s.io csistoragecapacities.storage.k8s.io daemonsets.apps deployments.apps
deviceclasses.resource.k8s.io endpoints endpointslices.discovery.k8s.io events events.events.k8s.io flowschemas.flowcontrol.apiserver.k8s.io
horizontalpodautoscalers.autoscaling ingressclasses.networking.k8s.io ingresses.networking.k8s.io ipaddresses.networking.k8s.io jobs.batch
leases.coordination.k8s.io limitranges localsubjectaccessreviews.authorization.k8s.io mutatingadmissionpolicies.admissionregistration.k8s.io
mutatingadmissionpolicybindings.admissionregistration.k8s.io mutatingwebhookconfigurations.admissionregistration.k8s.io namespaces
networkpolicies.networking.k8s.io nodes persistentvolumeclaims persistentvolumes poddisruptionbudgets.policy pods podtemplates
priorityclasses.scheduling.k8s.io prioritylevelconfigurations.flowcontrol.apiserver.k8s.io replicasets.apps replicationcontrollers
resourceclaims.resource.k8s.io resourceclaimtemplates.resource.k8s.io resourcequotas resourceslices.resource.k8s.io
rolebindings.rbac.authorization.k8s.io roles.rbac.authorization.k8s.io runtimeclasses.node.k8s.io secrets
selfsubjectaccessreviews.authorization.k8s.io selfsubjectreviews.authentication.k8s.io selfsubjectrulesreviews.authorization.k8s.io
serviceaccounts servicecidrs.networking.k8s.io services statefulsets.apps storageclasses.storage.k8s.io subjectaccessreviews.authorization.k8s.io
tokenreviews.authentication.k8s.io validatingadmissionpolicies.admissionregistration.k8s.io
validatingadmissionpolicybindings.admissionregistration.k8s.io validatingwebhookconfigurations.admissionregistration.k8s.io
volumeattachments.storage.k8s.io volumeattributesclasses.storage.k8s.io`

func TestOpenAPIIsServedInBothVersions(t *testing.T) {
	client := discovery.NewDiscoveryClientForConfigOrDie(shared.admin())
	v2, err := client.OpenAPISchema()
	if err != nil {
		t.Fatal(err)
	}
	if v2.Info.Title != "Kubernetes" || !definesModel(v2, "io.k8s.api.apps.v1.Deployment") {
		t.Error("v2 does not define Deployments")
	}
	paths, err := client.OpenAPIV3().Paths()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"api/v1", "apis/apps/v1", "apis/rbac.authorization.k8s.io/v1", "version"} {
		doc := paths[p]
		if doc == nil {
			t.Errorf("v3 lacks %s", p)
			continue
		}
		for _, accept := range []string{"application/json", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"} {
			if _, err := doc.Schema(accept); err != nil {
				t.Errorf("%s as %s: %v", p, accept, err)
			}
		}
	}
	doc, err := paths["apis/apps/v1"].Schema("application/json")
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Paths      map[string]any
		Components struct {
			Schemas map[string]struct{ Description string }
		}
	}
	if err := json.Unmarshal(doc, &spec); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(spec.Components.Schemas["io.k8s.api.apps.v1.Deployment"].Description, "declarative updates") {
		t.Error("v3 does not explain Deployments")
	}
	if spec.Paths["/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"] == nil {
		t.Error("v3 lacks the scale subresource")
	}
	code, header, _ := raw(t, "GET", "/openapi/v3/apis/apps/v1?hash=OLD", "", "application/json", "")
	if code != 301 || !strings.Contains(header.Get("Location"), "hash=") {
		t.Errorf("an old hash: %d %v, want a redirect to the new one", code, header)
	}
}

func definesModel(doc *openapi_v2.Document, name string) bool {
	for _, d := range doc.Definitions.AdditionalProperties {
		if d.Name == name {
			return proto.Size(d.Value) > 0
		}
	}
	return false
}

func TestNamespaceTerminatesAndIsFinalized(t *testing.T) {
	ctx, client := testContext(t), clientset(t, shared.admin())
	name := namespace(t)
	if err := client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ns, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ns.Status.Phase != corev1.NamespaceTerminating || ns.DeletionTimestamp == nil {
		t.Errorf("deleted namespace is %+v", ns.Status)
	}
	if _, err := client.CoreV1().ConfigMaps(name).Create(ctx, configMap("late", nil), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("create in a terminating namespace: %v, want forbidden", err)
	}
	ns.Spec.Finalizers = nil
	if _, err := client.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("finalized namespace: %v, want not found", err)
	}
	if err := client.CoreV1().Namespaces().Delete(ctx, "kube-system", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("delete of kube-system: %v, want forbidden", err)
	}
}

func TestPodsMayBePrivileged(t *testing.T) {
	template := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: "i", SecurityContext: &corev1.SecurityContext{Privileged: new(true)}}},
	}}}
	if _, err := clientset(t, shared.admin()).CoreV1().PodTemplates(namespace(t)).Create(testContext(t), template, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestStatusAndSpecAreWrittenApart(t *testing.T) {
	ctx, ns := testContext(t), namespace(t)
	client := clientset(t, shared.admin()).AppsV1().Deployments(ns)
	d, err := client.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			},
		},
		Status: appsv1.DeploymentStatus{Replicas: 9},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d.Status.Replicas != 0 {
		t.Error("create has written the status")
	}
	d.Status.Replicas, d.Spec.Replicas = 3, ptr.To(int32(7))
	if d, err = client.UpdateStatus(ctx, d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if d.Status.Replicas != 3 || *d.Spec.Replicas != 1 {
		t.Errorf("status update: status %d, spec %d", d.Status.Replicas, *d.Spec.Replicas)
	}
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		scale, err := client.GetScale(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		scale.Spec.Replicas = 5
		_, err = client.UpdateScale(ctx, "web", scale, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if d, err = client.Get(ctx, "web", metav1.GetOptions{}); err != nil || *d.Spec.Replicas != 5 {
		t.Errorf("after scaling: %v, %v", d, err)
	}
}

func TestWatchEndsWithTheServerSideTimeout(t *testing.T) {
	ctx := testContext(t)
	w, err := clientset(t, shared.admin()).CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{TimeoutSeconds: ptr.To(int64(1))})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			t.Fatal(apierrors.FromObject(e.Object))
		}
	}
}
