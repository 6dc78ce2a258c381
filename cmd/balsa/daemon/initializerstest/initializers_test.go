package initializerstest_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/controltest"
	"github.com/balsahq/balsa/control/legacy/initializers"
	"github.com/balsahq/balsa/leader/replicaset"
	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

// seeing is a transport that asks for objects that are not initialized.
type seeing struct{ http.RoundTripper }

func (s seeing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.RawQuery = strings.TrimPrefix(r.URL.RawQuery+"&includeUninitialized=true", "&")
	return s.RoundTripper.RoundTrip(r)
}

// follow runs the controller of ReplicaSets until the test ends and returns what it tells.
func follow(t *testing.T, s *controltest.Server) <-chan string {
	t.Helper()
	client := kubernetes.NewForConfigOrDie(s.Client(control.Identity{User: "system:serviceaccount:kube-system:replicaset-controller", Groups: []string{"system:masters"}}))
	return workqueuetest.Start(t, client, func(e workqueue.Env) (workqueue.Runner, error) { return replicaset.New(e, 2) })
}

func configuration(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	text := `{"apiVersion": "admissionregistration.k8s.io/v1alpha1", "kind": "InitializerConfiguration", "metadata": {"name": "pods"}, "initializers": [
		{"name": "` + name + `", "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]}]}`
	if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestAReplicaSetWhosePodsWaitForAnInitializer(t *testing.T) {
	s := controltest.Start(t, func(c *control.Config) { c.Initializers, c.InitializerPatience = true, 300*time.Millisecond })
	config := s.AdminConfig()
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return seeing{rt} })
	all, admin := kubernetes.NewForConfigOrDie(config).CoreV1().Pods("default"), s.Admin()
	if _, err := dynamic.NewForConfigOrDie(s.AdminConfig()).Resource(initializers.Resource).Create(t.Context(), configuration(t, "slow.example.com"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	told := follow(t, s)
	labels := map[string]string{"app": "web"}
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.ReplicaSetSpec{
		Replicas: ptr.To[int32](3), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "todo"}}}},
	}}
	if _, err := admin.AppsV1().ReplicaSets("default").Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	count := func(seen bool) int {
		pods := all
		if seen {
			pods = admin.CoreV1().Pods("default")
		}
		list, err := pods.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	controltest.Await(t, "the set's controller to hear of it", func() bool {
		select {
		case e := <-told:
			return strings.Contains(e, "still being initialized by slow.example.com")
		default:
			return false
		}
	})
	for range 20 { // while nobody initializes, whoever looks at the set makes no more of them
		patch := []byte(`{"metadata": {"annotations": {"at": "` + time.Now().String() + `"}}}`)
		if _, err := admin.AppsV1().ReplicaSets("default").Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		<-time.After(100 * time.Millisecond)
		if made, seen := count(false), count(true); made != 1 || seen != 0 {
			t.Fatalf("%d pods, %d of them seen", made, seen)
		}
	}
	controltest.Await(t, "three pods, initialized", func() bool {
		list, err := all.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			p := &list.Items[i]
			if !initializers.Uninitialized(p) {
				continue
			}
			if p.Spec.Containers[0].Image = "done"; initializers.Set(p, nil) != nil {
				t.Fatal("cannot finish a pod")
			}
			if _, err := all.Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		return count(true) == 3
	})
	list, err := all.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 3 {
		t.Fatalf("%d pods, %v", len(list.Items), err)
	}
	for i := range list.Items {
		if list.Items[i].Spec.Containers[0].Image != "done" {
			t.Errorf("a pod nobody initialized: %v", list.Items[i].Spec.Containers)
		}
	}
}
