package encryption_test

import (
	"bytes"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/balsahq/balsa/control/controltest"
	"github.com/balsahq/balsa/control/encryption"
	"github.com/balsahq/balsa/raftstore"
)

func TestEverythingEncryptedIsAClusterAsAnyOther(t *testing.T) {
	t.Parallel()
	s, _ := start(t, configuration("'*.*'", key("secretbox", "one", "1")))
	client := s.Admin()
	mustAccount(t, client)
	t.Run("bootstrap token", func(t *testing.T) { bootstrapToken(t, s, client) })
	t.Run("service account and RBAC", func(t *testing.T) { serviceAccount(t, s, client) })
	t.Run("node authorizer", func(t *testing.T) { nodeAuthorizer(t, s, client) })
	t.Run("quota and admission", func(t *testing.T) { quota(t, client) })
	t.Run("service", func(t *testing.T) { service(t, client) })
	t.Run("verbs", func(t *testing.T) { verbs(t, client) })
	t.Run("custom resources", func(t *testing.T) { custom(t, s.AdminConfig()) })

	n, want := 0, encryption.Header{Provider: "secretbox", Key: "one"}
	s.Store.View().Ascend("/registry/", raftstore.PrefixEnd("/registry/"), func(kv *raftstore.KeyValue) bool {
		n++
		if got := encryption.HeaderOf(kv.Value); got != want || bytes.Contains(kv.Value, []byte(plaintext)) {
			t.Errorf("%s is stored with %v", kv.Key, got)
		}
		return true
	})
	shares := 0
	for _, share := range status(t, s).Shares {
		shares += share.Objects
		if share.Stale || share.Error != "" {
			t.Errorf("status: %+v", share)
		}
	}
	if n < 100 || shares != n {
		t.Errorf("%d objects, of which the status knows %d", n, shares)
	}
	if err := ready(t, s); err != nil {
		t.Error(err)
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// mustAccount makes the ServiceAccount that a controller makes in every namespace.
func mustAccount(t *testing.T, client kubernetes.Interface) {
	for _, name := range []string{"default", "reader"} {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
		must[*corev1.ServiceAccount](t)(client.CoreV1().ServiceAccounts("default").Create(bounded(t), account, metav1.CreateOptions{}))
	}
}

func whoami(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	review := must[*authenticationv1.SelfSubjectReview](t)(client.AuthenticationV1().SelfSubjectReviews().Create(bounded(t), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}))
	return review.Status.UserInfo.Username
}

func bootstrapToken(t *testing.T, s *controltest.Server, client kubernetes.Interface) {
	token := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"}, Type: corev1.SecretTypeBootstrapToken, StringData: map[string]string{
		"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
	}}
	must[*corev1.Secret](t)(client.CoreV1().Secrets("kube-system").Create(bounded(t), token, metav1.CreateOptions{}))
	if got := whoami(t, s.Bearer("abcdef.0123456789abcdef")); got != "system:bootstrap:abcdef" {
		t.Errorf("the token is of %q", got)
	}
}

func serviceAccount(t *testing.T, s *controltest.Server, client kubernetes.Interface) {
	token := must[*authenticationv1.TokenRequest](t)(client.CoreV1().ServiceAccounts("default").CreateToken(bounded(t), "reader", &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))
	account := s.Bearer(token.Status.Token)
	if got := whoami(t, account); got != "system:serviceaccount:default:reader" {
		t.Errorf("the token is of %q", got)
	}
	if _, err := account.CoreV1().Secrets("default").List(bounded(t), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("without a role: %v", err)
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"list"}}}}
	must[*rbacv1.Role](t)(client.RbacV1().Roles("default").Create(bounded(t), role, metav1.CreateOptions{}))
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "b"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "r"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "reader"}},
	}
	must[*rbacv1.RoleBinding](t)(client.RbacV1().RoleBindings("default").Create(bounded(t), binding, metav1.CreateOptions{}))
	if _, err := account.CoreV1().Secrets("default").List(bounded(t), metav1.ListOptions{}); err != nil {
		t.Errorf("with a role: %v", err)
	}
}

func nodeAuthorizer(t *testing.T, s *controltest.Server, client kubernetes.Interface) {
	must[*corev1.Node](t)(client.CoreV1().Nodes().Create(bounded(t), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}))
	makeSecret(t, client, "mine")
	makeSecret(t, client, "other")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
		NodeName: "n1", PriorityClassName: "", Containers: []corev1.Container{{Name: "c", Image: "x", EnvFrom: []corev1.EnvFromSource{{
			SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "mine"}}}}}},
	}}
	must[*corev1.Pod](t)(client.CoreV1().Pods("default").Create(bounded(t), pod, metav1.CreateOptions{}))
	config := s.AdminConfig()
	config.Impersonate = restclient.ImpersonationConfig{UserName: "system:node:n1", Groups: []string{"system:nodes", "system:authenticated"}}
	node := kubernetes.NewForConfigOrDie(config)
	got := must[*corev1.Secret](t)(node.CoreV1().Secrets("default").Get(bounded(t), "mine", metav1.GetOptions{}))
	if string(got.Data["k"]) != plaintext {
		t.Errorf("the node reads %q", got.Data["k"])
	}
	if _, err := node.CoreV1().Secrets("default").Get(bounded(t), "other", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another secret: %v", err)
	}
}

func quota(t *testing.T, client kubernetes.Interface) {
	ctx, maps := bounded(t), client.CoreV1().ConfigMaps("default")
	ceiling := corev1.ResourceList{"count/configmaps": resource.MustParse("1")}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: ceiling}}
	q = must[*corev1.ResourceQuota](t)(client.CoreV1().ResourceQuotas("default").Create(ctx, q, metav1.CreateOptions{}))
	q.Status = corev1.ResourceQuotaStatus{Hard: ceiling, Used: corev1.ResourceList{"count/configmaps": resource.MustParse("0")}}
	must[*corev1.ResourceQuota](t)(client.CoreV1().ResourceQuotas("default").UpdateStatus(ctx, q, metav1.UpdateOptions{}))
	must[*corev1.ConfigMap](t)(maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}))
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota") {
		t.Errorf("one more than the quota: %v", err)
	}
	limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: corev1.LimitTypeContainer, Default: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}}}}}
	must[*corev1.LimitRange](t)(client.CoreV1().LimitRanges("default").Create(ctx, limits, metav1.CreateOptions{}))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "limited"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}}}
	pod = must[*corev1.Pod](t)(client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}))
	if got := pod.Spec.Containers[0].Resources.Limits.Cpu().String(); got != "3" {
		t.Errorf("the limit range gives %s", got)
	}
}

func service(t *testing.T, client kubernetes.Interface) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	svc = must[*corev1.Service](t)(client.CoreV1().Services("default").Create(bounded(t), svc, metav1.CreateOptions{}))
	address, err := client.NetworkingV1().IPAddresses().Get(bounded(t), svc.Spec.ClusterIP, metav1.GetOptions{})
	if err != nil || address.Spec.ParentRef == nil || address.Spec.ParentRef.Name != "web" {
		t.Errorf("address of the Service: %+v, %v", address, err)
	}
}

func verbs(t *testing.T, client kubernetes.Interface) {
	ctx, secrets := bounded(t), client.CoreV1().Secrets("default")
	list := must[*corev1.SecretList](t)(secrets.List(ctx, metav1.ListOptions{}))
	w := must[watch.Interface](t)(secrets.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion, FieldSelector: "metadata.name=v"}))
	defer w.Stop()
	made := must[*corev1.Secret](t)(secrets.Create(ctx, secret("v"), metav1.CreateOptions{}))
	again := must[*corev1.Secret](t)(secrets.Update(ctx, made, metav1.UpdateOptions{}))
	if again.ResourceVersion != made.ResourceVersion {
		t.Error("an update that changes nothing was written")
	}
	must[*corev1.Secret](t)(secrets.Patch(ctx, "v", types.StrategicMergePatchType, []byte(`{"stringData":{"p":"1"}}`), metav1.PatchOptions{}))
	apply := applycorev1.Secret("v", "default").WithStringData(map[string]string{"a": "1"})
	applied := must[*corev1.Secret](t)(secrets.Apply(ctx, apply, metav1.ApplyOptions{FieldManager: "test"}))
	if len(applied.Data) != 3 || string(applied.Data["k"]) != plaintext {
		t.Errorf("after patch and apply: %d entries", len(applied.Data))
	}
	if err := secrets.Delete(ctx, "v", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Modified, watch.Deleted} {
		e := <-w.ResultChan()
		if got, ok := e.Object.(*corev1.Secret); e.Type != want || !ok || string(got.Data["k"]) != plaintext {
			t.Fatalf("event %v, want %v", e.Type, want)
		}
	}
}

func custom(t *testing.T, config *restclient.Config) {
	ctx := bounded(t)
	object := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "chests.example.com"}, Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: "example.com", Scope: apiextensionsv1.NamespaceScoped, Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "chests", Kind: "Chest"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &object}}},
	}}
	must[*apiextensionsv1.CustomResourceDefinition](t)(apiextensions.NewForConfigOrDie(config).ApiextensionsV1().CustomResourceDefinitions().Create(ctx, crd, metav1.CreateOptions{}))
	chests := dynamic.NewForConfigOrDie(config).Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "chests"}).Namespace("default")
	controltest.Await(t, "the custom resource", func() bool {
		_, err := chests.List(ctx, metav1.ListOptions{})
		return err == nil
	})
	chest := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Chest", "metadata": map[string]any{"name": "c"}, "note": plaintext}}
	must[*unstructured.Unstructured](t)(chests.Create(ctx, chest, metav1.CreateOptions{}))
	got := must[*unstructured.Unstructured](t)(chests.Patch(ctx, "c", types.MergePatchType, []byte(`{"more":"x"}`), metav1.PatchOptions{}))
	if got.Object["note"] != plaintext || got.Object["more"] != "x" {
		t.Errorf("after a patch: %v", got.Object)
	}
}
