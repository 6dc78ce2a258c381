package control_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	restclient "k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/balsahq/balsa/control/legacy/initializers"
)

func (w *initWorld) served(t *testing.T) {
	want := []string{"admissionregistration.k8s.io/v1", "admissionregistration.k8s.io/v1alpha1"}
	for name, client := range map[string]discovery.DiscoveryInterface{"aggregated": w.client.Discovery(), "legacy": w.client.Discovery().WithLegacy()} {
		groups, err := client.ServerGroups()
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == initializers.Resource.Group })
		var have []string
		for _, v := range groups.Groups[at].Versions {
			have = append(have, v.GroupVersion)
		}
		if !slices.Equal(have, want) || groups.Groups[at].PreferredVersion.Version != "v1" {
			t.Errorf("%s: %v, preferred %v", name, have, groups.Groups[at].PreferredVersion)
		}
		list, err := client.ServerResourcesForGroupVersion(want[1])
		if err != nil || len(list.APIResources) != 1 || list.APIResources[0].Kind != "InitializerConfiguration" || list.APIResources[0].Namespaced {
			t.Errorf("%s: %v %+v", name, err, list)
		}
	}
	paths, err := w.client.Discovery().OpenAPIV3().Paths()
	if err != nil || paths["apis/"+want[1]] == nil || paths["apis/"+want[0]] == nil {
		t.Errorf("OpenAPI: %v", err)
	}
	if _, err := w.client.AdmissionregistrationV1().MutatingWebhookConfigurations().List(testContext(t), metav1.ListOptions{}); err != nil {
		t.Errorf("the built-in version: %v", err)
	}
}

func (w *initWorld) faulty(t *testing.T) {
	one := func(name, rule string) string { return `{"name": "` + name + `", "rules": [` + rule + `]}` }
	const good = `{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}`
	for list, want := range map[string]string{
		one("podimage", good):            "initializers[0].name",
		one("example.com", good):         "should be a domain with at least three segments",
		one("Pod.Example.com", good):     "initializers[0].name",
		`{"rules": [` + good + `]}`:      "initializers[0].name",
		one("a.example.com", `{}`):       "initializers[0].rules[0].resources",
		one("a.example.com", `{"to":1}`): `unknown field "initializers[0].rules[0].to"`,
		one("a.example.com", strings.Replace(good, `"v1"`, `"*", "v1"`, 1)):                      "if '*' is present, must not specify other API versions",
		one("a.example.com", strings.Replace(good, `"v1"`, `""`, 1)):                             "initializers[0].rules[0].apiVersions[0]",
		one("a.example.com", strings.Replace(good, `[""]`, `["*", "apps"]`, 1)):                  "if '*' is present, must not specify other API groups",
		one("a.example.com", strings.Replace(good, `"configmaps"`, `"pods", "*"`, 1)):            "if '*' is present, must not specify other resources",
		one("a.example.com", strings.Replace(good, `"configmaps"`, `"pods/status"`, 1)):          "must not specify subresources",
		one("a.example.com", strings.Replace(good, `"configmaps"`, `"config*"`, 1)):              "'*' stands for all",
		one("a.example.com", strings.Replace(good, `["configmaps"]`, `"configmaps"`, 1)):         "initializers[0].rules[0].resources",
		one("a.example.com", good) + "," + one("a.example.com", good):                            "Duplicate value",
		one("a.example.com", good) + "," + one("b.example.com", good+`,`+`{"resources": ["x"]}`): "initializers[1].rules[1].apiGroups",
	} {
		if _, err := w.configuration("faulty", list); !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %q, have %v", list, want, err)
		}
	}
	if _, err := w.client.CoreV1().ConfigMaps("default").Create(testContext(t), configMap("not-held-up", nil), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
}

// lists is what a client finds in every way of asking for ConfigMaps, which have to agree.
func lists(t *testing.T, r *restclient.Config, ns string) (names []string) {
	t.Helper()
	first := true
	for _, encoding := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		c := restclient.CopyConfig(r)
		c.ContentType = encoding
		for _, o := range []metav1.ListOptions{
			{}, {ResourceVersion: "0"}, {LabelSelector: "test"}, {FieldSelector: "metadata.namespace=" + ns}, {Limit: 1000},
		} {
			list, err := clientset(t, c).CoreV1().ConfigMaps(ns).List(testContext(t), o)
			if err != nil {
				t.Fatal(err)
			}
			var have []string
			for i := range list.Items {
				have = append(have, list.Items[i].Name)
			}
			if first {
				first, names = false, have
			} else if !slices.Equal(have, names) {
				t.Errorf("%s, %+v: %v, others %v", encoding, o, have, names)
			}
		}
	}
	var table metav1.Table
	text, err := clientset(t, r).CoreV1().RESTClient().Get().Namespace(ns).Resource("configmaps").
		SetHeader("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1").Do(testContext(t)).Raw()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &table); err != nil || len(table.Rows) != len(names) {
		t.Errorf("table: %v, %d rows", err, len(table.Rows))
	}
	return names
}

func (w *initWorld) unseen(t *testing.T) {
	ns := w.space()
	maps, all := w.client.CoreV1().ConfigMaps(ns), w.all.CoreV1().ConfigMaps(ns)
	first, err := maps.Create(testContext(t), configMap("a", nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.configure(t, "maps", "", "configmaps", "a.example.com")
	follow := func(o metav1.ListOptions) watch.Interface {
		o.AllowWatchBookmarks = true
		f, err := maps.Watch(testContext(t), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.Stop)
		return f
	}
	before := follow(metav1.ListOptions{ResourceVersion: first.ResourceVersion})
	for _, name := range []string{"b", "c"} {
		m, err := all.Create(testContext(t), configMap(name, nil), metav1.CreateOptions{})
		if err != nil || m.Annotations[initializers.Annotation] != `{"pending":[{"name":"a.example.com"}]}` {
			t.Fatalf("%v %+v", err, m)
		}
	}
	if seen := lists(t, w.admin(), ns); !slices.Equal(seen, []string{"a"}) {
		t.Errorf("seen: %v", seen)
	}
	if seen := lists(t, w.seeingAll(), ns); !slices.Equal(seen, []string{"a", "b", "c"}) {
		t.Errorf("seen by one who asks for all: %v", seen)
	}
	initial := follow(metav1.ListOptions{SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if err := all.Delete(testContext(t), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	done, err := all.Patch(testContext(t), "b", types.MergePatchType, []byte(finished), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(testContext(t), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		events watch.Interface
		want   []string
	}{
		"from a version": {before, []string{"ADDED b", "DELETED b"}}, "from the initial events": {initial, []string{"ADDED a", "BOOKMARK ", "ADDED b", "DELETED b"}},
	} {
		for _, want := range c.want {
			e := <-c.events.ResultChan()
			m, ok := e.Object.(*corev1.ConfigMap)
			if !ok || string(e.Type)+" "+m.Name != want {
				t.Fatalf("%s: want %s, have %+v", name, want, e)
			}
			if want == "ADDED b" && m.ResourceVersion != done.ResourceVersion {
				t.Errorf("%s: seen at %s, initialized at %s", name, m.ResourceVersion, done.ResourceVersion)
			}
		}
	}
}

func (w *initWorld) pages(t *testing.T) {
	ns := w.space()
	for i, name := range strings.Split("abcdefgh", "") {
		m := configMap(name, nil)
		if i%3 != 0 {
			m.Annotations = pending("a.example.com")
		}
		if _, err := w.all.CoreV1().ConfigMaps(ns).Create(testContext(t), m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for config, want := range map[*restclient.Config]string{w.admin(): "a d g", w.seeingAll(): "a b c d e f g h"} {
		var have []string
		for o := (metav1.ListOptions{Limit: 1}); ; {
			page, err := clientset(t, config).CoreV1().ConfigMaps(ns).List(testContext(t), o)
			if err != nil {
				t.Fatal(err)
			}
			for i := range page.Items {
				have = append(have, page.Items[i].Name)
			}
			if o.Continue = page.Continue; o.Continue == "" {
				break
			}
		}
		if strings.Join(have, " ") != want {
			t.Errorf("have %v, want %s", have, want)
		}
	}
}

func (w *initWorld) collections(t *testing.T) {
	ns := w.space()
	for _, name := range []string{"a", "b"} {
		m := configMap(name, nil)
		if name == "b" {
			m.Annotations = pending("a.example.com")
		}
		if _, err := w.all.CoreV1().ConfigMaps(ns).Create(testContext(t), m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.client.CoreV1().ConfigMaps(ns).DeleteCollection(testContext(t), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if left := lists(t, w.seeingAll(), ns); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func (w *initWorld) applied(t *testing.T) {
	ns := w.space()
	w.configure(t, "maps", "", "configmaps", "a.example.com")
	apply := func(value string) (*corev1.ConfigMap, error) {
		c := applycorev1.ConfigMap("m", ns).WithData(map[string]string{"k": value})
		return w.jane.CoreV1().ConfigMaps(ns).Apply(context.Background(), c, metav1.ApplyOptions{FieldManager: "jane"})
	}
	type result struct {
		m   *corev1.ConfigMap
		err error
	}
	answer := make(chan result, 1)
	go func() {
		m, err := apply("1")
		answer <- result{m, err}
	}()
	all := w.all.CoreV1().ConfigMaps(ns)
	settles(t, "the object waits", func() bool {
		_, err := all.Get(context.Background(), "m", metav1.GetOptions{})
		return err == nil
	})
	if _, err := apply("2"); !apierrors.IsForbidden(err) {
		t.Errorf("apply to an object that waits: %v", err)
	}
	if _, err := all.Patch(testContext(t), "m", types.StrategicMergePatchType, []byte(`{"metadata": {"annotations": {"`+initializers.Annotation+`": null}}, "data": {"by": "initializer"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := <-answer; got.err != nil || got.m.Data["by"] != "initializer" || got.m.Annotations != nil {
		t.Errorf("applied: %v %+v", got.err, got.m)
	}
	if m, err := apply("2"); err != nil || m.Data["k"] != "2" || m.Data["by"] != "initializer" {
		t.Errorf("applied again: %v %+v", err, m)
	}
}

func (w *initWorld) custom(t *testing.T) {
	crds := extensionsclient.NewForConfigOrDie(w.admin()).ApiextensionsV1().CustomResourceDefinitions()
	w.configure(t, "all", "*", "*", "a.example.com") // definitions are exempt
	definition, err := crds.Create(testContext(t), cronTabDefinition(), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	gvr := schema.GroupVersionResource{Group: definition.Spec.Group, Version: definition.Spec.Versions[0].Name, Resource: definition.Spec.Names.Plural}
	tabs := dynamic.NewForConfigOrDie(w.admin()).Resource(gvr).Namespace("default")
	all := dynamic.NewForConfigOrDie(w.seeingAll()).Resource(gvr).Namespace("default")
	settles(t, "the resource is served", func() bool {
		_, err := tabs.List(context.Background(), metav1.ListOptions{})
		return err == nil
	})
	answer := make(chan error, 1)
	go func() {
		o, err := tabs.Create(context.Background(), cronTab("t", 1), metav1.CreateOptions{})
		if err == nil && (o.GetLabels()["by"] != "initializer" || o.GetAnnotations() != nil) {
			t.Errorf("made: %v", o.Object)
		}
		answer <- err
	}()
	settles(t, "the resource waits", func() bool {
		list, err := all.List(context.Background(), metav1.ListOptions{})
		return err == nil && len(list.Items) == 1
	})
	if list, err := tabs.List(testContext(t), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("seen: %v %v", err, list)
	}
	if _, err := all.Patch(testContext(t), "t", types.MergePatchType, []byte(strings.Replace(finished, `{"annotations"`, `{"labels": {"by": "initializer"}, "annotations"`, 1)), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; err != nil {
		t.Fatal(err)
	}
	if list, err := tabs.List(testContext(t), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("not seen: %v %v", err, list)
	}
}

func (w *initWorld) exempt(t *testing.T) {
	ns := w.space()
	w.configure(t, "all", "*", "*", "never.example.com")
	mirror := initPod("mirror")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "1"}
	mirror.Spec.NodeName = "n"
	if p, err := w.client.CoreV1().Pods(ns).Create(testContext(t), mirror, metav1.CreateOptions{}); err != nil || initializers.Uninitialized(p) {
		t.Errorf("mirror pod: %v", err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l"}}
	if _, err := w.client.CoordinationV1().Leases(ns).Create(testContext(t), lease, metav1.CreateOptions{}); err != nil {
		t.Errorf("lease: %v", err)
	}
	w.configure(t, "other", "", "nothing", "never.example.com")
	p := initPod("tried")
	if p, err := w.client.CoreV1().Pods(ns).Create(testContext(t), p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil || !initializers.Uninitialized(p) {
		t.Errorf("a dry run waits for nobody and shows for whom it would: %v", err)
	}
}

func (w *initWorld) waitingRights(t *testing.T) {
	waiting := bindingOf("cluster-admin", "joe")
	waiting.Name, waiting.Annotations = "joe", pending("a.example.com")
	if _, err := w.all.RbacV1().ClusterRoleBindings().Create(testContext(t), waiting, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	joe := restclient.CopyConfig(w.admin())
	joe.Impersonate = restclient.ImpersonationConfig{UserName: "joe"}
	look := func() error {
		_, err := clientset(t, joe).CoreV1().Secrets("default").List(testContext(t), metav1.ListOptions{})
		return err
	}
	if err := look(); !apierrors.IsForbidden(err) {
		t.Errorf("while his binding waits: %v", err)
	}
	if _, err := w.all.RbacV1().ClusterRoleBindings().Patch(testContext(t), "joe", types.MergePatchType, []byte(finished), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := look(); err != nil {
		t.Errorf("once it is initialized: %v", err)
	}
}

func TestInitializersAreOffUnlessAskedFor(t *testing.T) {
	ctx, maps := testContext(t), clientset(t, shared.admin()).CoreV1().ConfigMaps(namespace(t))
	_, err := dynamic.NewForConfigOrDie(shared.admin()).Resource(initializers.Resource).List(ctx, metav1.ListOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("list of configurations: %v", err)
	}
	m := configMap("m", nil)
	m.Annotations = pending("a.example.com")
	if _, err := maps.Create(ctx, m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil || !slices.ContainsFunc(list.Items, func(m corev1.ConfigMap) bool { return m.Name == "m" }) {
		t.Errorf("the annotation hides something: %v", err)
	}
}
