package volume

import (
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func service(ns, name, ip string, ports ...v1.ServicePort) *v1.Service {
	return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: v1.ServiceSpec{ClusterIP: ip, Ports: ports}}
}

func envOf(t *testing.T, m *Manager, pod *v1.Pod, c *v1.Container) (map[string]string, error) {
	t.Helper()
	kvs, err := m.Env(t.Context(), pod, c, EnvInput{PodIPs: []string{"10.0.0.5", "fd00::5"}, HostIPs: []string{"192.168.0.1"}})
	out := map[string]string{}
	for _, kv := range kvs {
		if _, twice := out[kv.Key]; twice {
			t.Errorf("%s twice", kv.Key)
		}
		out[kv.Key] = string(kv.Value)
	}
	return out, err
}

func TestEnvironment(t *testing.T) {
	secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"pw": []byte("hush"), "shared": []byte("from-secret")}}
	m, _ := newManager(t, configMap("cm", map[string]string{"k": "v", "shared": "from-cm"}), secret)
	m.cfg.Services = func() ([]*v1.Service, error) {
		return []*v1.Service{
			service("default", "kubernetes", "10.96.0.1", v1.ServicePort{Name: "https", Port: 443}),
			service("ns", "my-db", "10.96.0.7", v1.ServicePort{Port: 53, Protocol: v1.ProtocolUDP}),
			service("ns", "headless", v1.ClusterIPNone, v1.ServicePort{Port: 1}),
			service("elsewhere", "other", "10.96.0.8", v1.ServicePort{Port: 1}),
		}, nil
	}
	local := func(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }
	field := func(path string) *v1.EnvVarSource {
		return &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}
	}
	c := &v1.Container{Name: "c",
		EnvFrom: []v1.EnvFromSource{
			{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: local("cm")}},
			{Prefix: "S_", SecretRef: &v1.SecretEnvSource{LocalObjectReference: local("s")}},
			{SecretRef: &v1.SecretEnvSource{LocalObjectReference: local("none"), Optional: ptr.To(true)}},
		},
		Env: []v1.EnvVar{
			{Name: "EARLY", Value: "$(LATE)"}, {Name: "LATE", Value: "late"},
			{Name: "k", Value: "override-$(k)"},
			{Name: "URL", Value: "http://$(MY_DB_SERVICE_HOST):$(MY_DB_SERVICE_PORT)/$$(k)/$(k)"},
			{Name: "IP", ValueFrom: field("status.podIP")}, {Name: "IPS", ValueFrom: field("status.podIPs")},
			{Name: "HOST", ValueFrom: field("status.hostIP")}, {Name: "NODE", ValueFrom: field("spec.nodeName")},
			{Name: "LABEL", ValueFrom: field("metadata.labels['app']")},
			{Name: "PW", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: local("s"), Key: "pw"}}},
			{Name: "OPT", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: local("cm"), Key: "none", Optional: ptr.To(true)}}},
			{Name: "MEM", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}}},
			{Name: "CPU", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "requests.cpu"}}},
		},
		Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("250m")}},
	}
	pod := podWith("p")
	got, err := envOf(t, m, pod, c)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"EARLY": "$(LATE)", "LATE": "late", "k": "override-v", "shared": "from-cm", "S_pw": "hush", "S_shared": "from-secret",
		"URL": "http://10.96.0.7:53/$(k)/override-v", "IP": "10.0.0.5", "IPS": "10.0.0.5,fd00::5", "HOST": "192.168.0.1",
		"NODE": "n1", "LABEL": "x", "PW": "hush", "MEM": "1024", "CPU": "1",
		"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443", "KUBERNETES_SERVICE_PORT_HTTPS": "443",
		"KUBERNETES_PORT": "tcp://10.96.0.1:443", "KUBERNETES_PORT_443_TCP": "tcp://10.96.0.1:443",
		"KUBERNETES_PORT_443_TCP_PROTO": "tcp", "KUBERNETES_PORT_443_TCP_PORT": "443", "KUBERNETES_PORT_443_TCP_ADDR": "10.96.0.1",
		"MY_DB_SERVICE_HOST": "10.96.0.7", "MY_DB_SERVICE_PORT": "53", "MY_DB_PORT": "udp://10.96.0.7:53",
		"MY_DB_PORT_53_UDP": "udp://10.96.0.7:53", "MY_DB_PORT_53_UDP_PROTO": "udp", "MY_DB_PORT_53_UDP_PORT": "53", "MY_DB_PORT_53_UDP_ADDR": "10.96.0.7",
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s = %q, want %q", k, got[k], v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d variables, want %d: %v", len(got), len(want), got)
	}
	pod.Spec.EnableServiceLinks = ptr.To(false)
	if got, err = envOf(t, m, pod, &v1.Container{}); err != nil || got["MY_DB_PORT"] != "" || got["KUBERNETES_SERVICE_HOST"] == "" {
		t.Error("enableServiceLinks: false", got, err)
	}
}

func TestEnvironmentErrorsAreWordedForUsers(t *testing.T) {
	m, _ := newManager(t, configMap("cm", nil), &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}})
	ref := func(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }
	key := func(s *v1.EnvVarSource) *v1.Container {
		return &v1.Container{Name: "c", Env: []v1.EnvVar{{Name: "X", ValueFrom: s}}}
	}
	for want, c := range map[string]*v1.Container{
		`configmap "x" not found`:                 {EnvFrom: []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: ref("x")}}}},
		`secret "x" not found`:                    key(&v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: ref("x"), Key: "k"}}),
		"couldn't find key k in ConfigMap ns/cm":  key(&v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: ref("cm"), Key: "k"}}),
		"couldn't find key k in Secret ns/s":      key(&v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: ref("s"), Key: "k"}}),
		"unsupported fieldPath: spec.none":        key(&v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "spec.none"}}),
		"unsupported container resource : limits": key(&v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits"}}),
	} {
		if _, err := envOf(t, m, podWith("p"), c); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	m.cfg.Services = func() ([]*v1.Service, error) { return nil, errors.New("not yet") }
	if _, err := envOf(t, m, podWith("p"), &v1.Container{}); err == nil {
		t.Error("a container would start without service variables")
	}
}

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "1", "EMPTY": "", "REF": "$(A)"}
	for in, want := range map[string]string{
		"": "", "plain": "plain", "$(A)": "1", "$$(A)": "$(A)", "$$$(A)": "$1", "$(EMPTY)": "", "$(NONE)": "$(NONE)",
		"$(A": "$(A", "$(A$(A)": "$(A$(A)", "$": "$", "a$": "a$", "$A": "$A", "$(REF)": "$(A)", "$()": "$()", "x$(A)y$(A)z": "x1y1z", "$$": "$", "é$é": "é$é",
	} {
		if got := Expand(in, func(n string) (string, bool) { v, ok := vars[n]; return v, ok }); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"$(A)", "$$(A)", "$(A", "$", "$$$", "a$(B)$(", "$($(A))"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		same := Expand(s, func(n string) (string, bool) { return "$(" + n + ")", true })
		none := Expand(s, func(string) (string, bool) { return "", false })
		if same != none {
			t.Fatalf("%q: %q and %q", s, same, none)
		}
		if !strings.Contains(s, "$$") && none != s {
			t.Fatalf("%q became %q without any reference known", s, none)
		}
	})
}

func TestEnvFile(t *testing.T) {
	text := "# comment\n\nA='one'\nB='two\nlines' # note\nC= 'space'\n"
	for key, want := range map[string]string{"A": "one", "B": "two\nlines", "C": "", "D": ""} {
		if got, err := envFileValue(text, key); err != nil || got != want {
			t.Errorf("%s: %q %v", key, got, err)
		}
	}
	for _, bad := range []string{"A", "='x'", "A ='x'", "A=x", "A='x", "A='x' y"} {
		if _, err := envFileValue(bad, "A"); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestDownwardMapsAreSortedAndQuoted(t *testing.T) {
	pod := podWith("p")
	pod.Annotations = map[string]string{"b": "2\n", "a": `"1"`}
	got, err := fieldValue(pod, "metadata.annotations", EnvInput{})
	if err != nil || got != "a=\"\\\"1\\\"\"\nb=\"2\\n\"" {
		t.Fatalf("%q %v", got, err)
	}
	if got, err := fieldValue(pod, "metadata.annotations['b']", EnvInput{}); err != nil || got != "2\n" {
		t.Fatalf("%q %v", got, err)
	}
	if _, err := fieldValue(pod, "metadata.name['b']", EnvInput{}); err == nil {
		t.Fatal("metadata.name has no subscript")
	}
}
