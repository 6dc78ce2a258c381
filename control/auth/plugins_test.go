package auth_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/admission"
	"github.com/balsahq/balsa/control/controltest"
)

const admissionHead = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"

const podSecurityDefaults = `- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: baseline}
    exemptions: {namespaces: [trusted]}
`

const twoEventsANamespace = `apiVersion: eventratelimit.admission.k8s.io/v1alpha1
kind: Configuration
limits: [{type: Namespace, qps: 1, burst: 2, cacheSize: 10}]
`

// TestPluginsAreAskedAsTheFlagsSay runs one server with some plugins switched on, one switched off, and a configuration
// file.
func TestPluginsAreAskedAsTheFlagsSay(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("events.yaml", twoEventsANamespace)
	file := write("admission.yaml", admissionHead+podSecurityDefaults+"- name: EventRateLimit\n  path: events.yaml\n")
	s := controltest.Start(t, func(c *control.Config) {
		c.Admission = admission.Settings{
			Enable:  []string{"DenyServiceExternalIPs", "AlwaysPullImages", "EventRateLimit", "ServiceAccount"},
			Disable: []string{"DefaultTolerationSeconds"}, ConfigFile: file,
		}
	})
	client := s.Admin()
	for _, name := range []string{"plain", "trusted"} {
		makeNamespace(t, client, name)
	}
	t.Run("a pod", func(t *testing.T) {
		p := must[*corev1.Pod](t)(client.CoreV1().Pods("plain").Create(t.Context(), somePod(), metav1.CreateOptions{}))
		if p.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways {
			t.Errorf("pull policy %s", p.Spec.Containers[0].ImagePullPolicy)
		}
		if len(p.Spec.Tolerations) != 0 {
			t.Errorf("tolerations %v", p.Spec.Tolerations)
		}
	})
	t.Run("a pod of the host", func(t *testing.T) {
		p := somePod()
		p.Spec.HostNetwork = true
		if _, err := client.CoreV1().Pods("plain").Create(t.Context(), p, metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "baseline") {
			t.Errorf("where the default is baseline: %v", err)
		}
		if _, err := client.CoreV1().Pods("trusted").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Errorf("where it is exempt: %v", err)
		}
	})
	t.Run("external IPs", func(t *testing.T) {
		_, err := client.CoreV1().Services("plain").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}, ExternalIPs: []string{"203.0.113.1"}}}, metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "Use of external IPs is denied") {
			t.Errorf("%v", err)
		}
	})
	t.Run("events", func(t *testing.T) {
		for i := range 3 {
			_, err := client.CoreV1().Events("plain").Create(t.Context(), &corev1.Event{ObjectMeta: metav1.ObjectMeta{GenerateName: "e-"},
				InvolvedObject: corev1.ObjectReference{Namespace: "plain"}}, metav1.CreateOptions{})
			if refused := apierrors.IsTooManyRequests(err); refused != (i == 2) {
				t.Errorf("event %d: %v", i+1, err)
			}
		}
	})
}

func makeNamespace(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	must[*corev1.Namespace](t)(client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
	must[*corev1.ServiceAccount](t)(client.CoreV1().ServiceAccounts(name).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))
}

func somePod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/i:1"}}}}
}

func TestFaultyAdmissionSettingsSayWhatIsWrong(t *testing.T) {
	file := func(text string) admission.Settings {
		return admission.Settings{ConfigFile: controltest.File(t, "admission.yaml", text)}
	}
	for name, c := range map[string]struct {
		settings admission.Settings
		want     string
	}{
		"a plugin that is not there": {admission.Settings{Enable: []string{"AlwaysPullImage"}}, `--enable-admission-plugins: there is no plugin "AlwaysPullImage"; give some of`},
		"the same off":               {admission.Settings{Disable: []string{"Nonsense"}}, `--disable-admission-plugins: there is no plugin "Nonsense"`},
		"on and off":                 {admission.Settings{Enable: []string{"AlwaysPullImages"}, Disable: []string{"AlwaysPullImages"}}, "take it out of one"},
		"no file":                    {admission.Settings{ConfigFile: "/nowhere/admission.yaml"}, "--admission-control-config-file: open /nowhere/admission.yaml: no such file"},
		"no configuration":           {file("kind: Pod\napiVersion: v1\n"), "it should be an AdmissionConfiguration of apiserver.config.k8s.io/v1"},
		"an unknown field":           {file(admissionHead + "- name: PodSecurity\n  config: {}\n"), `unknown field "plugins[0].config"`},
		"a plugin without settings":  {file(admissionHead + "- name: Priority\n  path: x\n"), `plugin "Priority" takes no configuration; those that do: EventRateLimit`},
		"a plugin that is off":       {file(admissionHead + "- name: EventRateLimit\n  path: x\n"), "plugin EventRateLimit is configured and is not on: add it to --enable-admission-plugins"},
		"a path to nothing":          {file(admissionHead + "- name: PodSecurity\n  path: nothing.yaml\n"), "plugin PodSecurity: open "},
		"neither":                    {file(admissionHead + "- name: PodSecurity\n"), "give either a configuration or the path of a file"},
		"twice":                      {file(admissionHead + podSecurityDefaults + podSecurityDefaults), "plugin PodSecurity is there twice"},
		"webhooks of a folder": {file(admissionHead + "- name: ValidatingAdmissionWebhook\n  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: 7}\n"),
			"plugin ValidatingAdmissionWebhook: "},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.settings.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v\nwant %s", err, c.want)
			}
		})
	}
}
