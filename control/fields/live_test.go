package fields_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/balsahq/balsa/control/controltest"
)

// heard collects warnings.
type heard struct {
	mu   sync.Mutex
	said []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (h *heard) HandleWarningHeader(_ int, _ string, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.said = append(h.said, text)
}

func (h *heard) take() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := strings.Join(h.said, "\n")
	h.said = nil
	return out
}

// world is a server, and a client that collects warnings.
type world struct {
	*controltest.Server
	client *kubernetes.Clientset
	heard  *heard
}

func newWorld(t *testing.T) *world {
	s, h := controltest.Start(t), &heard{}
	c := s.AdminConfig()
	c.WarningHandler = h
	w := &world{Server: s, client: kubernetes.NewForConfigOrDie(c), heard: h}
	account := &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}} // no controller runs here
	if _, err := w.client.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	return w
}

// send writes an object given as JSON and returns the server's answer.
func (w *world) send(t *testing.T, method, path, object string) (map[string]any, error) {
	t.Helper()
	verb := w.client.CoreV1().RESTClient().Verb(method).AbsPath(path).Body([]byte(object)).SetHeader("Content-Type", "application/json")
	if method == http.MethodPatch {
		verb.SetHeader("Content-Type", string(types.StrategicMergePatchType))
	}
	answer := verb.Do(t.Context())
	if err := answer.Error(); err != nil {
		return nil, err
	}
	raw, err := answer.Raw()
	if err != nil {
		return nil, err
	}
	var out map[string]any
	err = json.Unmarshal(raw, &out)
	return out, err
}

const pods = "/api/v1/namespaces/default/pods"

func podOf(spec string) string {
	return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"automountServiceAccountToken":false,"containers":[{"name":"c","image":"im"}]` + spec + `}}`
}

func templateOf(spec string) string {
	return `{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[{"name":"c","image":"im"}]` + spec + `}}`
}

func TestNothingWithoutEffectIsTakenSilently(t *testing.T) {
	w := newWorld(t)
	group := `,"schedulingGroup":{"podGroupName":"g"}`
	deployment := func(spec string, replicas int) string {
		return fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"replicas":%d,"selector":{"matchLabels":{"app":"x"}},"template":%s}}`, replicas, templateOf(spec))
	}
	const deployments = "/apis/apps/v1/namespaces/default/deployments"

	t.Run("a pod is refused with the field's name and what to do", func(t *testing.T) {
		_, err := w.send(t, "POST", pods, podOf(group))
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.schedulingGroup: Forbidden: has no effect here") || !strings.Contains(err.Error(), "leave it out") {
			t.Errorf("%v", err)
		}
	})
	t.Run("a template is taken with a warning, once", func(t *testing.T) {
		if _, err := w.send(t, "POST", deployments, deployment(group, 1)); err != nil {
			t.Fatal(err)
		}
		if said := w.heard.take(); !strings.Contains(said, "spec.template.spec.schedulingGroup: pods are not scheduled in groups") {
			t.Errorf("heard %q", said)
		}
		nfs := `,"volumes":[{"name":"v","nfs":{"server":"a","path":"/b"}}]`
		if _, err := w.send(t, "PUT", deployments+"/d", deployment(nfs, 1)); err != nil {
			t.Fatal(err)
		}
		if said := w.heard.take(); !strings.Contains(said, "volumes[0].nfs: ") {
			t.Errorf("heard %q of what an update sets", said)
		}
		if _, err := w.send(t, "PUT", deployments+"/d", deployment(nfs, 2)); err != nil {
			t.Fatal(err)
		}
		if said := w.heard.take(); said != "" {
			t.Errorf("heard %q of what was there before", said)
		}
	})
	t.Run("a kind without effect says so", func(t *testing.T) {
		class := `{"apiVersion":"storage.k8s.io/v1","kind":"VolumeAttributesClass","metadata":{"name":"d"},"driverName":"d.example.com","parameters":{"a":"b"}}`
		if _, err := w.send(t, "POST", "/apis/storage.k8s.io/v1/volumeattributesclasses", class); err != nil {
			t.Fatal(err)
		}
		if said := w.heard.take(); !strings.Contains(said, "volumes are not modified") {
			t.Errorf("heard %q", said)
		}
	})
	t.Run("an ordinary pod is told nothing", func(t *testing.T) {
		if _, err := w.send(t, "POST", pods, podOf("")); err != nil {
			t.Fatal(err)
		}
		if said := w.heard.take(); said != "" {
			t.Errorf("heard %q", said)
		}
	})
}

func TestWhatEphemeralContainersMayNotSet(t *testing.T) {
	w := newWorld(t)
	if _, err := w.send(t, "POST", pods, podOf("")); err != nil {
		t.Fatal(err)
	}
	probe := `{"exec":{"command":["true"]}}`
	for field, value := range map[string]string{
		"lifecycle": `{"preStop":{"exec":{"command":["true"]}}}`, "livenessProbe": probe, "readinessProbe": probe, "startupProbe": probe,
		"ports": `[{"containerPort":80}]`, "resources": `{"limits":{"cpu":"1"}}`, "resizePolicy": `[{"resourceName":"cpu","restartPolicy":"NotRequired"}]`,
		"restartPolicy": `"Always"`, "restartPolicyRules": `[{"action":"Restart","exitCodes":{"operator":"In","values":[1]}}]`,
	} {
		_, err := w.send(t, "PATCH", pods+"/p/ephemeralcontainers", `{"spec":{"ephemeralContainers":[{"name":"e","image":"im","`+field+`":`+value+`}]}}`)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestFieldsThatTheAPIActsOn(t *testing.T) {
	w := newWorld(t)
	t.Run("Secret.stringData", func(t *testing.T) {
		s, err := w.client.CoreV1().Secrets("default").Create(t.Context(), &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"a": "b"}}, metav1.CreateOptions{})
		if err != nil || string(s.Data["a"]) != "b" || len(s.StringData) != 0 {
			t.Errorf("%v %v: %v", s.Data, s.StringData, err)
		}
	})
	t.Run("PodAffinityTerm.matchLabelKeys", func(t *testing.T) {
		p, err := w.send(t, "POST", pods, strings.Replace(podOf(`,"serviceAccount":"default","affinity":{"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[`+
			`{"topologyKey":"h","labelSelector":{"matchLabels":{"app":"x"}},"matchLabelKeys":["rev"],"mismatchLabelKeys":["tenant"]}]}}`),
			`"name":"p"`, `"name":"p","labels":{"rev":"7","tenant":"t"}`, 1))
		text := fmt.Sprint(p)
		if err != nil || !strings.Contains(text, "map[key:rev operator:In values:[7]]") || !strings.Contains(text, "map[key:tenant operator:NotIn values:[t]]") {
			t.Errorf("%s: %v", text, err)
		}
		if !strings.Contains(text, "serviceAccountName:default") {
			t.Errorf("serviceAccount is not serviceAccountName: %s", text)
		}
	})
	t.Run("ServiceAccount", func(t *testing.T) {
		if _, err := w.send(t, "POST", "/api/v1/namespaces/default/serviceaccounts", `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"sa",`+
			`"annotations":{"kubernetes.io/enforce-mountable-secrets":"true"}},"automountServiceAccountToken":false,"imagePullSecrets":[{"name":"pull"}],"secrets":[{"name":"mine"}]}`); err != nil {
			t.Fatal(err)
		}
		pod := func(name, secret, automount string) string {
			return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name + `"},"spec":{"serviceAccountName":"sa"` + automount + `,"containers":[{"name":"c","image":"im"}],` +
				`"volumes":[{"name":"v","secret":{"secretName":"` + secret + `"}}]}}`
		}
		p, err := w.send(t, "POST", pods, pod("q", "mine", ""))
		if text := fmt.Sprint(p); err != nil || !strings.Contains(text, "imagePullSecrets:[map[name:pull]]") || strings.Contains(text, "kube-api-access") {
			t.Errorf("%s: %v", text, err)
		}
		if _, err := w.send(t, "POST", pods, pod("r", "others", "")); !apierrors.IsForbidden(err) {
			t.Errorf("a secret that the account does not list: %v", err)
		}
		p, err = w.send(t, "POST", pods, pod("s", "mine", `,"automountServiceAccountToken":true`))
		if text := fmt.Sprint(p); err != nil || !strings.Contains(text, "kube-api-access") {
			t.Errorf("the pod's own word on its token: %s: %v", text, err)
		}
	})
	t.Run("JobSpec.manualSelector", func(t *testing.T) {
		job := func(name, more string) string {
			return `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"` + name + `"},"spec":{` + more + `"template":` + templateOf(`,"restartPolicy":"Never"`) + `}}`
		}
		const jobs = "/apis/batch/v1/namespaces/default/jobs"
		mine, err := w.send(t, "POST", jobs, job("mine", `"manualSelector":true,"selector":{"matchLabels":{"app":"x"}},`))
		if text := fmt.Sprint(mine["spec"].(map[string]any)["selector"]); err != nil || text != "map[matchLabels:map[app:x]]" {
			t.Errorf("%s: %v", text, err)
		}
		its, err := w.send(t, "POST", jobs, job("its", ""))
		if text := fmt.Sprint(its["spec"].(map[string]any)["selector"]); err != nil || !strings.Contains(text, "batch.kubernetes.io/controller-uid") {
			t.Errorf("%s: %v", text, err)
		}
	})
	t.Run("StorageClass.allowVolumeExpansion", func(t *testing.T) {
		for name, allowed := range map[string]bool{"grows": true, "fixed": false} {
			if _, err := w.send(t, "POST", "/apis/storage.k8s.io/v1/storageclasses", fmt.Sprintf(`{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":%q},"provisioner":"x/y","allowVolumeExpansion":%v}`, name, allowed)); err != nil {
				t.Fatal(err)
			}
			claim := `/api/v1/namespaces/default/persistentvolumeclaims`
			if _, err := w.send(t, "POST", claim, fmt.Sprintf(`{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":%q},"spec":{"accessModes":["ReadWriteOnce"],"storageClassName":%q,"volumeName":"v","resources":{"requests":{"storage":"1Gi"}}}}`, name, name)); err != nil {
				t.Fatal(err)
			}
			if _, err := w.send(t, "PATCH", claim+"/"+name+"/status", `{"status":{"phase":"Bound"}}`); err != nil {
				t.Fatal(err)
			}
			_, err := w.send(t, "PATCH", claim+"/"+name, `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
			if allowed != (err == nil) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
