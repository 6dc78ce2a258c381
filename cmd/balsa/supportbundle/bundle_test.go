package supportbundle

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	clientfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
)

// treasures must be nowhere in a bundle.
var treasures = []string{
	"value-of-a-secret", base64.StdEncoding.EncodeToString([]byte("value-of-a-secret")), "second line of a key", "value-of-a-variable",
	"value-of-an-argument", "value-of-a-config", "value-of-a-header", "value-of-an-annotation", "value-in-custom-spec", jwt, joinToken, "hunter22", "applied-value",
}

const (
	jwt       = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhZG1pbiJ9.c2lnbmF0dXJlLW9mLXRva2Vu"
	joinToken = "balsa1.s.0f3c0f3c0f3c0f3c0f3c0f3c0f3c0f3c.a1b2c3d4.9e8d9e8d9e8d9e8d9e8d9e8d9e8d9e8d"
)

func objects() []runtime.Object {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "ns", Name: name, Annotations: map[string]string{
			"example.com/note": "value-of-an-annotation", "kubectl.kubernetes.io/last-applied-configuration": "applied-value", "kubernetes.io/change-cause": "kept cause"}}
	}
	return []runtime.Object{
		&v1.Secret{ObjectMeta: meta("s"), Data: map[string][]byte{"a": []byte("value-of-a-secret"), "k": []byte("first line\nsecond line of a key\n"), "short": []byte("true")}},
		&v1.ConfigMap{ObjectMeta: meta("c"), Data: map[string]string{"key-name": "value-of-a-config"}},
		&v1.Pod{ObjectMeta: meta("p"), Spec: v1.PodSpec{NodeName: "node-1", Containers: []v1.Container{{
			Name: "main", Image: "kept-image", Args: []string{"--password=value-of-an-argument", "--api-token", "value-of-an-argument", "--listen=kept-address", "postgres://u:hunter22@db/x"},
			Env:           []v1.EnvVar{{Name: "KEPT_NAME", Value: "value-of-a-variable"}, {Name: "REF", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "kept-reference"}}}}},
			LivenessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{HTTPHeaders: []v1.HTTPHeader{{Name: "X", Value: "value-of-a-header"}}}}},
		}}}},
	}
}

func create(t *testing.T, cfg Config) map[string]string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	if err := Create(t.Context(), path, cfg); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if err := Create(t.Context(), path, cfg); err == nil {
		t.Error("a file that exists was written over")
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "balsa-support/")] = string(data)
	}
}

func TestNoSecretIsInABundleAndTheRestIs(t *testing.T) {
	all := objects()
	client := clientfake.NewClientset(all...)
	resource := func(name, kind string) metav1.APIResource {
		return metav1.APIResource{Name: name, Kind: kind, Namespaced: true, Verbs: metav1.Verbs{"list", "get"}}
	}
	client.Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
		resource("secrets", "Secret"), resource("configmaps", "ConfigMap"), resource("pods", "Pod"), resource("pods/log", "Pod")}}}
	log := "time=1 msg=\"the value is value-of-a-secret\" kept=line\nAuthorization: Bearer " + jwt + "\njoin with " + joinToken + "\n"
	files := create(t, Config{
		Client: client, Dynamic: fake.NewSimpleDynamicClient(scheme.Scheme, all...), Say: func(string, ...any) {},
		Sources: []Source{
			{"logs/one.txt", func(_ context.Context, w io.Writer) error { _, err := io.WriteString(w, log); return err }},
			{"logs/two.txt", func(context.Context, io.Writer) error { return errors.New("two does not answer") }},
		},
	})
	for name, data := range files {
		for _, secret := range treasures {
			if strings.Contains(data, secret) {
				t.Errorf("%s holds %q:\n%s", name, secret, data)
			}
		}
	}
	for name, wants := range map[string][]string{
		"logs/one.txt": {"kept=line", redacted}, "errors.txt": {"two does not answer"},
		"objects/configmaps.json": {"key-name"}, "objects/pods.json": {"kept-image", "KEPT_NAME", "kept-reference", "--listen=kept-address", "node-1", "kept cause"},
	} {
		for _, want := range wants {
			if !strings.Contains(files[name], want) {
				t.Errorf("%s lacks %q:\n%s", name, want, files[name])
			}
		}
	}
	if _, there := files["objects/secrets.json"]; there {
		t.Error("there are Secrets in the bundle")
	}
}

func TestObjectsOfForeignGroupsKeepTheirMetadataOnly(t *testing.T) {
	o := map[string]any{"kind": "Database", "metadata": map[string]any{"name": "kept"}, "spec": map[string]any{"anything": "value-in-custom-spec"}}
	object("db.example.com", "databases", o)
	if len(o) != 2 || o["spec"] != nil {
		t.Errorf("%v", o)
	}
}

func TestALongFileKeepsItsEnd(t *testing.T) {
	e := &ending{most: 10}
	for range 100 {
		_, _ = e.Write([]byte("0123456789"))
	}
	_, _ = e.Write([]byte("end"))
	if len(e.data) > 23 || !strings.HasSuffix(string(e.data), "789end") {
		t.Errorf("%q", e.data)
	}
}
