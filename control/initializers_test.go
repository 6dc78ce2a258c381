package control_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/legacy/initializers"
)

// initWorld is a server with Initializers.
type initWorld struct {
	*running
	t      *testing.T
	client *kubernetes.Clientset // the administrator, who sees what everybody sees
	all    *kubernetes.Clientset // the same, seeing all
	jane   *kubernetes.Clientset // may do everything with some kinds, but not initialize them
}

// seeing is a transport that asks for objects that are not initialized.
type seeing struct{ http.RoundTripper }

func (s seeing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	q := r.URL.Query()
	q.Set("includeUninitialized", "true")
	r.URL.RawQuery = q.Encode()
	return s.RoundTripper.RoundTrip(r)
}

func (r *running) seeingAll() *restclient.Config {
	c := restclient.CopyConfig(r.admin())
	c.Wrap(func(rt http.RoundTripper) http.RoundTripper { return seeing{rt} })
	return c
}

func newInitWorld(t *testing.T) *initWorld {
	t.Helper()
	r, err := start(t.TempDir(), func(c *control.Config) { c.Initializers = true })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	w := &initWorld{running: r, t: t, client: clientset(t, r.admin()), all: clientset(t, r.seeingAll())}
	jane := restclient.CopyConfig(r.admin())
	jane.Impersonate = restclient.ImpersonationConfig{UserName: "jane"}
	w.jane = clientset(t, jane)
	ctx := testContext(t)
	_, err = w.client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "writer"},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"configmaps", "pods", "pods/status", "pods/binding", "bindings"},
			Verbs: []string{"get", "list", "watch", "create", "update", "patch", "delete"},
		}},
	}, metav1.CreateOptions{})
	if err == nil {
		_, err = w.client.RbacV1().ClusterRoleBindings().Create(ctx, bindingOf("writer", "jane"), metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func bindingOf(role, name string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
	}
}

// space is a namespace with a default account.
func (w *initWorld) space() string {
	w.t.Helper()
	ns, err := w.client.CoreV1().Namespaces().Create(testContext(w.t), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "init-"}}, metav1.CreateOptions{})
	if err == nil {
		_, err = w.client.CoreV1().ServiceAccounts(ns.Name).Create(testContext(w.t), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return ns.Name
}

func (w *initWorld) configurations() dynamic.ResourceInterface {
	return dynamic.NewForConfigOrDie(w.admin()).Resource(initializers.Resource)
}

// configure has initializers for resources of a group until the test ends.
func (w *initWorld) configure(t *testing.T, name, group, resource string, names ...string) {
	t.Helper()
	var list []string
	for _, n := range names {
		list = append(list, fmt.Sprintf(`{"name": %q, "rules": [{"apiGroups": [%q], "apiVersions": ["*"], "resources": [%q]}]}`, n, group, resource))
	}
	if _, err := w.configuration(name, strings.Join(list, ",")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.configurations().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func (w *initWorld) configuration(name, list string) (*unstructured.Unstructured, error) {
	w.t.Helper()
	o := &unstructured.Unstructured{}
	text := fmt.Sprintf(`{"apiVersion": "admissionregistration.k8s.io/v1alpha1", "kind": "InitializerConfiguration", "metadata": {"name": %q}, "initializers": [%s]}`, name, list)
	if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
		w.t.Fatal(err)
	}
	return w.configurations().Create(testContext(w.t), o, metav1.CreateOptions{FieldValidation: "Strict"})
}

// pending is the annotation of an object that waits.
func pending(names ...string) map[string]string {
	o := &metav1.ObjectMeta{}
	if err := initializers.Set(o, initializers.Waiting(names)); err != nil {
		panic(err)
	}
	return o.Annotations
}

// finished is a patch that ends the wait.
const finished = `{"metadata": {"annotations": {"` + initializers.Annotation + `": null}}}`

func initPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "todo"}}},
	}
}

// work is an initializer of pods as its user writes it: an informer that sees all, and an update of whatever waits for
// name first.
func (w *initWorld) work(t *testing.T, name, namespace string, do func(*corev1.Pod)) {
	t.Helper()
	turn := func(o any) {
		p, ok := o.(*corev1.Pod)
		if !ok {
			return
		}
		state, err := initializers.Of(p)
		if err != nil || state.Empty() || state.Pending[0].Name != name {
			return
		}
		p = p.DeepCopy()
		do(p)
		state.Pending = state.Pending[1:]
		if err = initializers.Set(p, state); err == nil {
			_, err = w.client.CoreV1().Pods(namespace).Update(context.Background(), p, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	source := cache.NewListWatchFromClient(w.all.CoreV1().RESTClient(), "pods", namespace, fields.Everything())
	informer := cache.NewSharedInformer(source, &corev1.Pod{}, 0)
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: turn, UpdateFunc: func(_, o any) { turn(o) }}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); informer.RunWithContext(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

func TestInitializers(t *testing.T) {
	w := newInitWorld(t)
	t.Run("the kind is served as the last version of its group", w.served)
	t.Run("faulty configurations are refused", w.faulty)
	t.Run("two initializers finish a pod in order", w.inOrder)
	t.Run("a pod can be changed until it is initialized", w.changeable)
	t.Run("a failure is given to the creator and removes the object", w.failing)
	t.Run("who waits too long is told what for", w.late)
	t.Run("an object deleted while it waits", w.deletedMeanwhile)
	t.Run("who may initialize", w.rights)
	t.Run("what is not initialized is not seen", w.unseen)
	t.Run("pages leave out what is not initialized", w.pages)
	t.Run("collections are deleted whole", w.collections)
	t.Run("server-side apply", w.applied)
	t.Run("custom resources", w.custom)
	t.Run("mirror pods, leases and the API's own kinds are left alone", w.exempt)
	t.Run("rights that wait give nothing", w.waitingRights)
	t.Run("programs of Kubernetes v1.9 find what they know", w.field)
	t.Run("those who clean up see all", w.cleaners)
}

func (w *initWorld) inOrder(t *testing.T) {
	ns := w.space()
	w.configure(t, "b", "", "pods", "image.example.com")
	w.configure(t, "a", "", "pods", "sidecar.example.com", "image.example.com")
	var order []string
	w.work(t, "image.example.com", ns, func(p *corev1.Pod) {
		order = append(order, "image")
		for i := range p.Spec.Containers {
			p.Spec.Containers[i].Image = "registry.example.com/" + p.Spec.Containers[i].Image
		}
	})
	w.work(t, "sidecar.example.com", ns, func(p *corev1.Pod) {
		order = append(order, "sidecar")
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: "sidecar", Image: "envoy", TerminationMessagePolicy: "File", TerminationMessagePath: "/dev/log", ImagePullPolicy: "Always",
		})
	})
	p, err := w.jane.CoreV1().Pods(ns).Create(testContext(t), initPod("p"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Spec.Containers) != 2 || p.Spec.Containers[0].Image != "registry.example.com/todo" || p.Spec.Containers[1].Image != "registry.example.com/envoy" {
		t.Errorf("made %+v", p.Spec.Containers)
	}
	if p.Annotations != nil || !slices.Equal(order, []string{"sidecar", "image"}) {
		t.Errorf("annotations %v, order %v", p.Annotations, order)
	}
	if _, err := w.jane.CoreV1().Pods(ns).Patch(testContext(t), "p", types.MergePatchType, []byte(`{"metadata": {"labels": {"a": "b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("once initialized it is an object as others: %v", err)
	}
}

func (w *initWorld) changeable(t *testing.T) {
	ns := w.space()
	pods := w.all.CoreV1().Pods(ns)
	p := initPod("p")
	p.Annotations = pending("a.example.com")
	p, err := pods.Create(testContext(t), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if p.Status.QOSClass != corev1.PodQOSBestEffort {
		t.Errorf("quality of service %q", p.Status.QOSClass)
	}
	change := `{"spec": {"nodeSelector": {"disk": "fast"}, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}`
	if p, err = pods.Patch(testContext(t), "p", types.StrategicMergePatchType, []byte(change), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if p.Spec.NodeSelector["disk"] != "fast" || p.Status.QOSClass != corev1.PodQOSBurstable {
		t.Errorf("%+v %v", p.Spec.NodeSelector, p.Status.QOSClass)
	}
	if _, err := pods.Patch(testContext(t), "p", types.MergePatchType, []byte(`{"spec": {"restartPolicy": "Sometimes"}}`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("what no pod may have: %v", err)
	}
	if _, err := pods.Patch(testContext(t), "p", types.MergePatchType, []byte(finished), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Patch(testContext(t), "p", types.MergePatchType, []byte(`{"spec": {"nodeSelector": {"disk": "slow"}}}`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("change of an initialized pod: %v", err)
	}
}

func (w *initWorld) failing(t *testing.T) {
	ns := w.space()
	w.configure(t, "secrets", "", "secrets", "length.example.com")
	secrets := w.all.CoreV1().Secrets(ns)
	answer := make(chan error, 1)
	go func() {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "short", Finalizers: []string{"example.com/keep"}}}
		_, err := w.client.CoreV1().Secrets(ns).Create(context.Background(), s, metav1.CreateOptions{})
		answer <- err
	}()
	settles(t, "the secret waits", func() bool {
		_, err := secrets.Get(context.Background(), "short", metav1.GetOptions{})
		return err == nil
	})
	result := func(status string) []byte {
		text, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
			initializers.Annotation: `{"pending": [{"name": "length.example.com"}], "result": {"status": "` + status + `", "reason": "Invalid", "code": 422, "message": "secrets have 20 letters"}}`,
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	if _, err := secrets.Patch(testContext(t), "short", types.MergePatchType, result("Success"), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a result that is no failure: %v", err)
	}
	if _, err := secrets.Patch(testContext(t), "short", types.MergePatchType, result("Failure"), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; !apierrors.IsInvalid(err) || err.Error() != "secrets have 20 letters" {
		t.Errorf("its creator was told %v", err)
	}
	if s, err := secrets.Get(testContext(t), "short", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it is still there: %v %v", s, err)
	}
}

func (w *initWorld) late(t *testing.T) {
	ns := w.space()
	w.configure(t, "maps", "", "configmaps", "never.example.com")
	began := time.Now()
	answer := w.client.CoreV1().RESTClient().Post().Namespace(ns).Resource("configmaps").Param("timeout", "4s").Body(configMap("m", nil)).Do(testContext(t))
	err := answer.Error()
	var told apierrors.APIStatus
	if !apierrors.IsTimeout(err) || !strings.Contains(err.Error(), `configmaps "m" is created and still being initialized by never.example.com`) {
		t.Fatalf("told %v after %v", err, time.Since(began))
	}
	m, err := w.client.CoreV1().ConfigMaps(ns).Get(testContext(t), "m", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading it by name: %v", err)
	}
	if told, _ = answer.Error().(apierrors.APIStatus); told.Status().Details.UID != m.UID {
		t.Errorf("details %+v", told.Status().Details)
	}
	if _, err := w.client.CoreV1().ConfigMaps(ns).Create(testContext(t), configMap("m", nil), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("another of its name: %v", err)
	}
}

func (w *initWorld) deletedMeanwhile(t *testing.T) {
	ns := w.space()
	w.configure(t, "maps", "", "configmaps", "never.example.com")
	answer := make(chan error, 1)
	go func() {
		_, err := w.jane.CoreV1().ConfigMaps(ns).Create(context.Background(), configMap("m", nil), metav1.CreateOptions{})
		answer <- err
	}()
	maps := w.jane.CoreV1().ConfigMaps(ns)
	settles(t, "it can be deleted", func() bool { return maps.Delete(context.Background(), "m", metav1.DeleteOptions{}) == nil })
	if err := <-answer; !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "deleted while it waited") {
		t.Errorf("its creator was told %v", err)
	}
}
