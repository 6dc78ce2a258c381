package presets_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	api "k8s.io/kubernetes/pkg/apis/core"

	"github.com/balsahq/balsa/control/legacy/presets"
)

func preset(name string, change func(*presets.Spec)) *presets.PodPreset {
	p := &presets.PodPreset{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", ResourceVersion: "7"}}
	change(&p.Spec)
	return p
}

func pod() *api.Pod {
	return &api.Pod{Spec: api.PodSpec{
		InitContainers: []api.Container{{Name: "init"}},
		Containers: []api.Container{{
			Name: "c", Env: []api.EnvVar{{Name: "A", Value: "1"}},
			VolumeMounts: []api.VolumeMount{{Name: "data", MountPath: "/data"}},
		}},
		Volumes: []api.Volume{{Name: "data", VolumeSource: api.VolumeSource{EmptyDir: &api.EmptyDirVolumeSource{}}}},
	}}
}

func env(name, value string) func(*presets.Spec) {
	return func(s *presets.Spec) { s.Env = append(s.Env, corev1.EnvVar{Name: name, Value: value}) }
}

func mount(name, path string) func(*presets.Spec) {
	return func(s *presets.Spec) {
		s.VolumeMounts = append(s.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path})
	}
}

func TestPresetsAreMergedIntoEveryContainer(t *testing.T) {
	p := pod()
	first := preset("first", func(s *presets.Spec) {
		env("A", "1")(s) // what the pod says itself
		env("B", "2")(s)
		mount("cache", "/cache")(s)
		s.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}}
		s.Volumes = []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}}
	})
	second := preset("second", env("B", "2")) // what another preset says
	conflicts, err := presets.Apply(p, []*presets.PodPreset{first, second})
	if err != nil || len(conflicts) > 0 {
		t.Fatal(conflicts, err)
	}
	for _, c := range []api.Container{p.Spec.InitContainers[0], p.Spec.Containers[0]} {
		if n := len(c.Env); n != 2 || c.Env[1].Name != "B" || len(c.EnvFrom) != 1 || c.VolumeMounts[len(c.VolumeMounts)-1].MountPath != "/cache" {
			t.Errorf("container: %+v", c)
		}
	}
	if v := p.Spec.Volumes; len(v) != 2 || v[1].Secret == nil || v[1].Secret.DefaultMode == nil {
		t.Errorf("volumes, with a pod's defaults: %+v", v)
	}
	if p.Spec.InitContainers[0].EnvFrom[0].SecretRef == p.Spec.Containers[0].EnvFrom[0].SecretRef {
		t.Error("containers share memory")
	}
	if a := p.Annotations; len(a) != 2 || a["podpreset.admission.kubernetes.io/podpreset-first"] != "7" {
		t.Errorf("annotations: %v", a)
	}
}

func TestAPodInConflictIsUntouched(t *testing.T) {
	for name, c := range map[string]struct {
		all  []*presets.PodPreset
		want string
	}{
		"variable":         {[]*presets.PodPreset{preset("p", env("A", "secret"))}, `container "c" has another value of A`},
		"between presets":  {[]*presets.PodPreset{preset("q", env("B", "1")), preset("p", env("B", "secret"))}, `has another value of B`},
		"path":             {[]*presets.PodPreset{preset("p", mount("other", "/data"))}, `container "c" has another mount at /data`},
		"volume elsewhere": {[]*presets.PodPreset{preset("p", mount("data", "/elsewhere"))}, `container "c" mounts volume "data" in another way`},
		"volume's contents": {[]*presets.PodPreset{preset("p", func(s *presets.Spec) {
			s.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
		})}, `there is another volume "data"`},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod()
			conflicts, err := presets.Apply(p, append(c.all, preset("fine", env("FINE", "1"))))
			if err != nil || len(conflicts) == 0 || conflicts[0].Preset.Name != "p" || !strings.Contains(conflicts[0].Reason, c.want) {
				t.Fatalf("conflicts %+v %v", conflicts, err)
			}
			if !equality.Semantic.DeepEqual(p, pod()) {
				t.Errorf("pod was changed: %+v", p)
			}
			for _, c := range conflicts {
				if strings.Contains(c.Reason, "secret") {
					t.Errorf("a value is told: %s", c.Reason)
				}
			}
		})
	}
}

func TestWhatMakesPodsInvalidIsRefused(t *testing.T) {
	for want, p := range map[string]*presets.PodPreset{
		"give at least one of env":       preset("p", func(*presets.Spec) {}),
		"no longer than 53 characters":   preset(strings.Repeat("p", 54), env("A", "1")),
		"spec.volumes[0].name":           preset("p", func(s *presets.Spec) { s.Volumes = []corev1.Volume{{Name: "Not_A_Label"}} }),
		"spec.volumeMounts[0].mountPath": preset("p", mount("data", "")),
		"spec.env[0].valueFrom":          preset("p", func(s *presets.Spec) { s.Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{}}} }),
		"spec.envFrom: Invalid":          preset("p", func(s *presets.Spec) { s.EnvFrom = []corev1.EnvFromSource{{}} }),
		"spec.selector.matchExpressions": preset("p", func(s *presets.Spec) {
			env("A", "1")(s)
			s.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "k", Operator: "Near"}}
		}),
		"spec.volumeMounts[1].mountPath": preset("p", func(s *presets.Spec) { mount("a", "/x")(s); mount("b", "/x")(s) }),
	} {
		if faults := presets.Validate(p).ToAggregate(); faults == nil || !strings.Contains(faults.Error(), want) {
			t.Errorf("want %q, have %v", want, faults)
		}
	}
	if faults := presets.Validate(preset("p", mount("of-the-pod", "/x"))); len(faults) > 0 {
		t.Errorf("a mount of a pod's own volume: %v", faults)
	}
}
