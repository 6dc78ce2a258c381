package control_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/legacy/presets"
)

const frontendPreset = `{"apiVersion": "settings.k8s.io/v1alpha1", "kind": "PodPreset", "metadata": {"name": "allow-database"}, "spec": {
	"selector": {"matchLabels": {"role": "frontend"}},
	"env": [{"name": "DB_PORT", "value": "6379"}, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
	"envFrom": [{"configMapRef": {"name": "etcd-env-config"}}],
	"volumeMounts": [{"mountPath": "/cache", "name": "cache-volume"}],
	"volumes": [{"name": "cache-volume", "emptyDir": {"sizeLimit": "1Gi"}}]}}`

// presetWorld is a server with PodPresets and a namespace in it.
type presetWorld struct {
	*running
	t       *testing.T
	client  *kubernetes.Clientset
	presets dynamic.ResourceInterface
	warned  warnings
}

type warnings struct{ all []string }

// HandleWarningHeader implements restclient.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _ string, text string) { w.all = append(w.all, text) }

func newPresetWorld(t *testing.T) *presetWorld {
	t.Helper()
	r, err := start(t.TempDir(), func(c *control.Config) { c.PodPresets = true })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	w := &presetWorld{running: r, t: t}
	config := restclient.CopyConfig(r.admin())
	config.WarningHandler = &w.warned
	w.client = clientset(t, config)
	w.presets = dynamic.NewForConfigOrDie(r.admin()).Resource(presets.Resource).Namespace("default")
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := w.client.CoreV1().ServiceAccounts("default").Create(testContext(t), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *presetWorld) preset(text string) (*unstructured.Unstructured, error) {
	w.t.Helper()
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
		w.t.Fatal(err)
	}
	return w.presets.Create(testContext(w.t), o, metav1.CreateOptions{FieldValidation: "Strict"})
}

func (w *presetWorld) pod(name string, change func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"role": "frontend"}},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "i", Image: "i"}}, Containers: []corev1.Container{{Name: "c", Image: "i"}},
		},
	}
	if change != nil {
		change(p)
	}
	made, err := w.client.CoreV1().Pods("default").Create(testContext(w.t), p, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return made
}

func TestPodPresets(t *testing.T) {
	w := newPresetWorld(t)
	made, err := w.preset(frontendPreset)
	if err != nil {
		t.Fatal(err)
	}
	const applied = "podpreset.admission.kubernetes.io/podpreset-allow-database"
	p := w.pod("chosen", nil)
	if p.Annotations[applied] != made.GetResourceVersion() || p.Spec.Volumes[0].EmptyDir.SizeLimit.String() != "1Gi" {
		t.Errorf("annotations %v, volumes %+v", p.Annotations, p.Spec.Volumes)
	}
	for _, c := range append(p.Spec.InitContainers, p.Spec.Containers...) {
		if len(c.Env) != 2 || c.Env[0].Value != "6379" || c.EnvFrom[0].ConfigMapRef.Name != "etcd-env-config" || c.VolumeMounts[0].MountPath != "/cache" {
			t.Errorf("container %+v", c)
		}
	}
	t.Run("others are left alone", func(t *testing.T) {
		for name, change := range map[string]func(*corev1.Pod){
			"unlabelled": func(p *corev1.Pod) { p.Labels = nil },
			"excluded":   func(p *corev1.Pod) { p.Annotations = map[string]string{presets.Exclude: "true"} },
		} {
			if p := w.pod(name, change); len(p.Spec.Containers[0].Env) != 0 || p.Annotations[applied] != "" {
				t.Errorf("%s: %+v", name, p)
			}
		}
	})
	t.Run("only at creation", func(t *testing.T) {
		p := w.pod("later", func(p *corev1.Pod) { p.Labels = nil })
		p.Labels = map[string]string{"role": "frontend"}
		p, err := w.client.CoreV1().Pods("default").Update(testContext(t), p, metav1.UpdateOptions{})
		if err != nil || len(p.Spec.Containers[0].Env) != 0 {
			t.Errorf("%v %+v", err, p)
		}
	})
	t.Run("conflict", w.conflict)
	t.Run("faulty presets", w.faulty)
}

func (w *presetWorld) conflict(t *testing.T) {
	p := w.pod("torn", func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "DB_PORT", Value: "1"}} })
	if len(p.Spec.Containers[0].Env) != 1 || len(p.Spec.InitContainers[0].Env) != 0 || len(p.Annotations) != 0 {
		t.Errorf("pod in conflict: %+v", p)
	}
	if told := strings.Join(w.warned.all, "\n"); !strings.Contains(told, `PodPreset allow-database: container "c" has another value of DB_PORT`) {
		t.Errorf("the client was told %q", told)
	}
	settles(t, "an event tells of the conflict", func() bool {
		events, err := w.client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{FieldSelector: "reason=Conflict,involvedObject.kind=PodPreset"})
		return err == nil && len(events.Items) == 1 && strings.Contains(events.Items[0].Message, "pod torn was created without PodPresets")
	})
}

func (w *presetWorld) faulty(t *testing.T) {
	for change, want := range map[[2]string]string{
		{`"mountPath": "/cache"`, `"mountPath": ""`}:      "spec.volumeMounts[0].mountPath",
		{`"emptyDir"`, `"emptyDirectory"`}:                `unknown field "spec.volumes[0].emptyDirectory"`,
		{`"value": "6379"`, `"value": 6379`}:              "spec.env[0].value",
		{`{"matchLabels": {"role": "frontend"}}`, `null`}: "spec.selector",
		{`"1Gi"`, `"plenty"`}:                             "quantities must match",
	} {
		text := strings.Replace(strings.Replace(frontendPreset, "allow-database", "faulty", 1), change[0], change[1], 1)
		_, err := w.preset(text)
		if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, have %v", want, err)
		}
	}
}

func TestPodPresetsAreOffUnlessAskedFor(t *testing.T) {
	_, err := dynamic.NewForConfigOrDie(shared.admin()).Resource(presets.Resource).List(testContext(t), metav1.ListOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("list: %v", err)
	}
}

func TestADefinitionOfAnotherVersionIsBroughtUpToDate(t *testing.T) {
	dir, ctx := t.TempDir(), testContext(t)
	asked := func(c *control.Config) { c.PodPresets = true }
	r, err := start(dir, asked)
	if err != nil {
		t.Fatal(err)
	}
	crds := extensionsclient.NewForConfigOrDie(r.admin()).ApiextensionsV1().CustomResourceDefinitions()
	volumes := func(d *apiextensionsv1.CustomResourceDefinition) map[string]apiextensionsv1.JSONSchemaProps {
		return d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["volumes"].Items.Schema.Properties
	}
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error { // controllers write its conditions meanwhile
		d, err := crds.Get(ctx, presets.DefinitionName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		delete(volumes(d), "csi")
		d.Annotations["balsa.dev/kubernetes-version"] = "v1.0.0"
		_, err = crds.Update(ctx, d, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if r, err = start(dir, asked); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.stop() }()
	crds = extensionsclient.NewForConfigOrDie(r.admin()).ApiextensionsV1().CustomResourceDefinitions()
	d, err := crds.Get(ctx, presets.DefinitionName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := volumes(d)["csi"]; !ok {
		t.Error("the schema is still the old one")
	}
}
