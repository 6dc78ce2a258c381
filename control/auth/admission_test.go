package auth_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/balsahq/balsa/control"
)

func podSpec(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if change != nil {
		change(p)
	}
	return p
}

func create(t *testing.T, ns string, change func(*corev1.Pod)) (*corev1.Pod, error) {
	t.Helper()
	return admin.CoreV1().Pods(ns).Create(t.Context(), podSpec(change), metav1.CreateOptions{})
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

func TestAPodIsCompleted(t *testing.T) {
	ns := namespace(t, nil)
	p := must[*corev1.Pod](t)(create(t, ns, nil))
	if p.Spec.ServiceAccountName != "default" || len(p.Spec.Volumes) != 1 || p.Spec.Volumes[0].Projected == nil ||
		p.Spec.Containers[0].VolumeMounts[0].MountPath != "/var/run/secrets/kubernetes.io/serviceaccount" {
		t.Errorf("ServiceAccount: %+v", p.Spec)
	}
	if len(p.Spec.Tolerations) != 2 || p.Spec.Tolerations[0].Key != "node.kubernetes.io/not-ready" || *p.Spec.Tolerations[0].TolerationSeconds != 300 {
		t.Errorf("DefaultTolerationSeconds: %+v", p.Spec.Tolerations)
	}
	if p.Spec.Priority == nil || *p.Spec.Priority != 0 || p.Spec.PreemptionPolicy == nil {
		t.Errorf("Priority: %v", p.Spec.Priority)
	}
}

func TestRefusedPods(t *testing.T) {
	ns := namespace(t, map[string]string{"pod-security.kubernetes.io/enforce": "baseline"})
	if _, err := admin.CoreV1().LimitRanges(ns).Create(t.Context(), &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: corev1.LimitRangeSpec{
		Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{"cpu": resource.MustParse("1")}, Default: corev1.ResourceList{"cpu": resource.MustParse("500m")}}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if p := must[*corev1.Pod](t)(create(t, ns, nil)); p.Spec.Containers[0].Resources.Limits.Cpu().String() != "500m" {
		t.Errorf("LimitRanger gives no default: %+v", p.Spec.Containers[0].Resources)
	}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"PodSecurity": {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, `violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`},
		"LimitRanger": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("2")}
		}, "maximum cpu usage per Container is 1, but limit is 2"},
		"ServiceAccount": {func(p *corev1.Pod) { p.Spec.ServiceAccountName = "nobody" }, `error looking up service account ` + ns + `/nobody: serviceaccount "nobody" not found`},
		"Priority":       {func(p *corev1.Pod) { p.Spec.PriorityClassName = "none" }, "no PriorityClass with name none was found"},
		"RuntimeClass":   {func(p *corev1.Pod) { n := "none"; p.Spec.RuntimeClassName = &n }, `RuntimeClass "none" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := create(t, ns, c.change); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestClassesCountFromTheNextRequestOn(t *testing.T) {
	ns := namespace(t, nil)
	must[*schedulingv1.PriorityClass](t)(admin.SchedulingV1().PriorityClasses().Create(t.Context(), &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000}, metav1.CreateOptions{}))
	if p := must[*corev1.Pod](t)(create(t, ns, func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" })); *p.Spec.Priority != 1000 {
		t.Errorf("priority %d", *p.Spec.Priority)
	}
	must[*nodev1.RuntimeClass](t)(admin.NodeV1().RuntimeClasses().Create(t.Context(), &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata"}, Handler: "kata",
		Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{"cpu": resource.MustParse("10m")}}}, metav1.CreateOptions{}))
	kata := "kata"
	if p := must[*corev1.Pod](t)(create(t, ns, func(p *corev1.Pod) { p.Spec.RuntimeClassName = &kata })); p.Spec.Overhead.Cpu().String() != "10m" {
		t.Errorf("overhead %v", p.Spec.Overhead)
	}
	claim := func() *corev1.PersistentVolumeClaim {
		return must[*corev1.PersistentVolumeClaim](t)(admin.CoreV1().PersistentVolumeClaims(ns).Create(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"},
			Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteOnce"}, Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")}}}}, metav1.CreateOptions{}))
	}
	if c := claim(); c.Spec.StorageClassName != nil || !slices.Contains(c.Finalizers, "kubernetes.io/pvc-protection") {
		t.Errorf("claim without classes: %+v", c)
	}
	must[*storagev1.StorageClass](t)(admin.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "std",
		Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}}, Provisioner: "example.com/p"}, metav1.CreateOptions{}))
	if c := claim(); c.Spec.StorageClassName == nil || *c.Spec.StorageClassName != "std" {
		t.Errorf("claim with a default class: %v", c.Spec.StorageClassName)
	}
	must[*networkingv1.IngressClass](t)(admin.NetworkingV1().IngressClasses().Create(t.Context(), &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "in",
		Annotations: map[string]string{"ingressclass.kubernetes.io/is-default-class": "true"}}, Spec: networkingv1.IngressClassSpec{Controller: "example.com/in"}}, metav1.CreateOptions{}))
	in := must[*networkingv1.Ingress](t)(admin.NetworkingV1().Ingresses(ns).Create(t.Context(), &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "i"}, Spec: networkingv1.IngressSpec{
		DefaultBackend: &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "s", Port: networkingv1.ServiceBackendPort{Number: 80}}}}}, metav1.CreateOptions{}))
	if in.Spec.IngressClassName == nil || *in.Spec.IngressClassName != "in" {
		t.Errorf("ingress class %v", in.Spec.IngressClassName)
	}
}

func TestQuotaIsEnforcedAndCounted(t *testing.T) {
	ns := namespace(t, nil)
	q := must[*corev1.ResourceQuota](t)(admin.CoreV1().ResourceQuotas(ns).Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"pods": resource.MustParse("2"), "count/configmaps": resource.MustParse("1")}}}, metav1.CreateOptions{}))
	q.Status = corev1.ResourceQuotaStatus{Hard: q.Spec.Hard, Used: corev1.ResourceList{"pods": resource.MustParse("0"), "count/configmaps": resource.MustParse("0")}} // what the quota controller does
	must[*corev1.ResourceQuota](t)(admin.CoreV1().ResourceQuotas(ns).UpdateStatus(t.Context(), q, metav1.UpdateOptions{}))
	for range 2 {
		must[*corev1.Pod](t)(create(t, ns, nil))
	}
	if _, err := create(t, ns, nil); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2") {
		t.Errorf("third pod: %v", err)
	}
}

// quotaOf makes a quota whose recorded usage is zero, as the quota controller would.
func quotaOf(t *testing.T, ns, name, limit string, scopes ...corev1.ScopedResourceSelectorRequirement) {
	t.Helper()
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceName(limit): resource.MustParse("1")}}}
	if len(scopes) > 0 {
		q.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: scopes}
	}
	q = must[*corev1.ResourceQuota](t)(admin.CoreV1().ResourceQuotas(ns).Create(t.Context(), q, metav1.CreateOptions{}))
	q.Status = corev1.ResourceQuotaStatus{Hard: q.Spec.Hard, Used: corev1.ResourceList{corev1.ResourceName(limit): resource.MustParse("0")}}
	must[*corev1.ResourceQuota](t)(admin.CoreV1().ResourceQuotas(ns).UpdateStatus(t.Context(), q, metav1.UpdateOptions{}))
}

func TestAPodThatGetsADeadlineIsChargedToTheOtherScope(t *testing.T) {
	ns := namespace(t, nil)
	quotaOf(t, ns, "ending", "pods", corev1.ScopedResourceSelectorRequirement{ScopeName: "Terminating", Operator: "Exists"})
	quotaOf(t, ns, "staying", "pods", corev1.ScopedResourceSelectorRequirement{ScopeName: "NotTerminating", Operator: "Exists"})
	deadline := func(p *corev1.Pod) { seconds := int64(3600); p.Spec.ActiveDeadlineSeconds = &seconds }
	p := must[*corev1.Pod](t)(create(t, ns, nil))
	if _, err := create(t, ns, nil); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: staying") {
		t.Errorf("a second pod that stays: %v", err)
	}
	deadline(p)
	must[*corev1.Pod](t)(admin.CoreV1().Pods(ns).Update(t.Context(), p, metav1.UpdateOptions{}))
	if _, err := create(t, ns, deadline); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: ending") {
		t.Errorf("a second pod that ends: %v", err)
	}
}

func TestDevicesAreChargedPerClass(t *testing.T) {
	ns := namespace(t, nil)
	quotaOf(t, ns, "gold", "gold.deviceclass.resource.k8s.io/devices")
	claim := func(class string, devices int64) error {
		_, err := admin.ResourceV1().ResourceClaims(ns).Create(t.Context(), &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"},
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "r",
				Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: devices}}}}}}, metav1.CreateOptions{})
		return err
	}
	if err := claim("gold", 2); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: gold") {
		t.Errorf("two devices where one is allowed: %v", err)
	}
	if err := claim("gold", 1); err != nil {
		t.Errorf("one device: %v", err)
	}
	if err := claim("gold", 1); !apierrors.IsForbidden(err) {
		t.Errorf("one more: %v", err)
	}
	if err := claim("silver", 5); err != nil {
		t.Errorf("devices of a class without a limit: %v", err)
	}
}

func TestNamespacesThatAreGoneOrGoing(t *testing.T) {
	if _, err := create(t, "nowhere", nil); !apierrors.IsNotFound(err) {
		t.Errorf("no such namespace: %v", err)
	}
	ns := namespace(t, nil)
	if err := admin.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := create(t, ns, nil); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "because it is being terminated") {
		t.Errorf("terminating: %v", err)
	}
	if err := admin.CoreV1().Namespaces().Delete(t.Context(), "kube-system", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("kube-system: %v", err)
	}
}

func TestANodeMayOnlyDoItsOwn(t *testing.T) {
	ns := namespace(t, nil)
	n1 := as(control.Identity{User: "system:node:n1", Groups: []string{"system:nodes"}})
	must[*corev1.Node](t)(n1.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}))
	if _, err := n1.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another node's Node: %v", err)
	}
	for _, name := range []string{"used", "other"} {
		must[*corev1.Secret](t)(admin.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
	}
	secret := func(name string) error {
		_, err := n1.CoreV1().Secrets(ns).Get(t.Context(), name, metav1.GetOptions{})
		return err
	}
	p := must[*corev1.Pod](t)(create(t, ns, func(p *corev1.Pod) {
		p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "used"}}}}
	}))
	if err := secret("used"); !apierrors.IsForbidden(err) {
		t.Errorf("before the pod is bound: %v", err)
	}
	if err := admin.CoreV1().Pods(ns).Bind(t.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := secret("used"); err != nil {
		t.Errorf("of its own pod: %v", err)
	}
	if err := secret("other"); !apierrors.IsForbidden(err) {
		t.Errorf("of nobody's pod: %v", err)
	}
	if _, err := n1.CoreV1().Secrets(ns).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("all secrets: %v", err)
	}
	must[*corev1.PodList](t)(n1.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=n1"}))
	if _, err := n1.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("all pods: %v", err)
	}
	n2 := as(control.Identity{User: "system:node:n2", Groups: []string{"system:nodes"}})
	p = must[*corev1.Pod](t)(admin.CoreV1().Pods(ns).Get(t.Context(), p.Name, metav1.GetOptions{}))
	p.Status.Phase = corev1.PodRunning
	if _, err := n2.CoreV1().Pods(ns).UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("status of another node's pod: %v", err)
	}
	must[*corev1.Pod](t)(n1.CoreV1().Pods(ns).UpdateStatus(t.Context(), p, metav1.UpdateOptions{}))
}

// hook answers every review with allowed, or with a patch that adds a label.
func hook(t *testing.T, allowed bool) (url string, ca []byte) {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var review admissionv1.AdmissionReview
		if err != nil || json.Unmarshal(body, &review) != nil {
			http.Error(w, "bad review", http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: allowed, Result: &metav1.Status{Message: "not today"}}
		if r.URL.Path == "/mutate" {
			patch := admissionv1.PatchTypeJSONPatch
			review.Response.Allowed, review.Response.PatchType = true, &patch
			review.Response.Patch = []byte(`[{"op":"add","path":"/metadata/labels","value":{"touched":"yes"}}]`)
		}
		_ = json.NewEncoder(w).Encode(review) // the server under test will say so
	}))
	leaf := must[*tls.Certificate](t)(serving().GetCertificate(nil))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{*leaf}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv.URL, pkiCA()
}

func TestWebhooksAreCalledWhileTheyAreConfigured(t *testing.T) {
	ns := namespace(t, map[string]string{"hooks": "yes"})
	url, bundle := hook(t, false)
	none, equivalent := registrationv1.SideEffectClassNone, registrationv1.Equivalent
	rules := []registrationv1.RuleWithOperations{{Operations: []registrationv1.OperationType{"CREATE"}, Rule: registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"hooks": "yes"}}
	mutate, validate := url+"/mutate", url+"/validate"
	cm := func(name string) (*corev1.ConfigMap, error) {
		return admin.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	}
	must[*registrationv1.MutatingWebhookConfiguration](t)(admin.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), &registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "m"}, Webhooks: []registrationv1.MutatingWebhook{{Name: "m.example.com", SideEffects: &none, AdmissionReviewVersions: []string{"v1"}, MatchPolicy: &equivalent,
			ClientConfig: registrationv1.WebhookClientConfig{URL: &mutate, CABundle: bundle}, Rules: rules, NamespaceSelector: selector}}}, metav1.CreateOptions{}))
	if c := must[*corev1.ConfigMap](t)(cm("a")); c.Labels["touched"] != "yes" {
		t.Errorf("not mutated by the very next request: %v", c.Labels)
	}
	must[*registrationv1.ValidatingWebhookConfiguration](t)(admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "v"}, Webhooks: []registrationv1.ValidatingWebhook{{Name: "v.example.com", SideEffects: &none, AdmissionReviewVersions: []string{"v1"}, MatchPolicy: &equivalent,
			ClientConfig: registrationv1.WebhookClientConfig{URL: &validate, CABundle: bundle}, Rules: rules, NamespaceSelector: selector}}}, metav1.CreateOptions{}))
	if _, err := cm("b"); err == nil || !strings.Contains(err.Error(), `admission webhook "v.example.com" denied the request: not today`) {
		t.Errorf("not refused: %v", err)
	}
	if err := admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "v", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := admin.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(t.Context(), "m", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if c := must[*corev1.ConfigMap](t)(cm("c")); len(c.Labels) != 0 {
		t.Errorf("still mutated: %v", c.Labels)
	}
}

func TestAnAdmissionPolicyTakesHold(t *testing.T) {
	ns := namespace(t, nil)
	fail := registrationv1.Fail
	must[*registrationv1.ValidatingAdmissionPolicy](t)(admin.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), &registrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "short"}, Spec: registrationv1.ValidatingAdmissionPolicySpec{FailurePolicy: &fail,
			MatchConstraints: &registrationv1.MatchResources{ResourceRules: []registrationv1.NamedRuleWithOperations{{RuleWithOperations: registrationv1.RuleWithOperations{
				Operations: []registrationv1.OperationType{"CREATE"}, Rule: registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}}}},
			Validations: []registrationv1.Validation{{Expression: "size(object.metadata.name) < 8", Message: "too long a name"}}}}, metav1.CreateOptions{}))
	t.Cleanup(func() {
		_ = admin.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(context.Background(), "short", metav1.DeleteOptions{})
	})
	must[*registrationv1.ValidatingAdmissionPolicyBinding](t)(admin.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(t.Context(), &registrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "short"}, Spec: registrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "short", ValidationActions: []registrationv1.ValidationAction{"Deny"},
			MatchResources: &registrationv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": ns}}}}}, metav1.CreateOptions{}))
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		_, err := admin.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "much-too-long-"}}, metav1.CreateOptions{})
		return err != nil && strings.Contains(err.Error(), "too long a name"), nil
	})
	if err != nil {
		t.Fatalf("the policy never took hold: %v", err)
	}
}
