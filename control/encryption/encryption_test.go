package encryption_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/controltest"
	"github.com/balsahq/balsa/control/encryption"
)

// plaintext is a text that must not be found in the store.
const plaintext = "the treasure is below the old oak"

// key is a provider with one key of 32 bytes.
func key(provider, name, fill string) string {
	secret := base64.StdEncoding.EncodeToString([]byte(strings.Repeat(fill, 32)))
	return fmt.Sprintf("  - %s: {keys: [{name: %s, secret: %s}]}\n", provider, name, secret)
}

const identity = "  - identity: {}\n"

// configuration returns a file for one list of resources.
func configuration(resources string, providers ...string) string {
	return "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [" + resources + "]\n  providers:\n" +
		strings.Join(providers, "")
}

// start runs a server that follows a configuration file.
func start(t *testing.T, text string) (*controltest.Server, string) {
	t.Helper()
	file := controltest.File(t, "encryption.yaml", text)
	return controltest.Start(t, func(c *control.Config) { c.Encryption = encryption.Settings{File: file, Reload: true} }), file
}

// change replaces the file as editors do, and waits until the server uses it.
func change(t *testing.T, s *controltest.Server, file, text string) {
	t.Helper()
	before := status(t, s).Configuration
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	controltest.Await(t, "the new configuration", func() bool { return status(t, s).Configuration != before })
}

func rewriter(t *testing.T, s *controltest.Server) *encryption.Rewriter {
	t.Helper()
	r, err := encryption.NewRewriter(s.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func status(t *testing.T, s *controltest.Server) encryption.Status {
	t.Helper()
	st, err := rewriter(t, s).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// stored returns the value of a key in the store.
func stored(t *testing.T, s *controltest.Server, key string) []byte {
	t.Helper()
	kv := s.Store.View().Get(key)
	if kv == nil {
		t.Fatalf("nothing is stored at %s", key)
	}
	return kv.Value
}

func secret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"k": plaintext}}
}

func makeSecret(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	if _, err := client.CoreV1().Secrets("default").Create(t.Context(), secret(name), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// readable fails the test unless a secret is read as it was written, alone and in a list.
func readable(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	got, err := client.CoreV1().Secrets("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || string(got.Data["k"]) != plaintext {
		t.Fatalf("secret %s: %q, %v", name, got.Data["k"], err)
	}
	list, err := client.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) == 0 || string(list.Items[0].Data["k"]) != plaintext {
		t.Fatalf("list of secrets: %d, %v", len(list.Items), err)
	}
}

func rewrite(t *testing.T, s *controltest.Server, want int) {
	t.Helper()
	got, err := rewriter(t, s).Rewrite(t.Context(), "secrets")
	if err != nil || got.Done != want || got.Failed != 0 {
		t.Fatalf("rewritten %+v, %v; want %d done", got, err, want)
	}
	for _, share := range status(t, s).Shares {
		if share.Resource == "secrets" && (share.Stale || share.Error != "") {
			t.Fatalf("after rewriting: %+v", share)
		}
	}
}

func TestKeysAreRotatedWhileTheServerRuns(t *testing.T) {
	t.Parallel()
	// More stale objects than one page holds.
	s, file := start(t, configuration("secrets", identity, key("secretbox", "one", "1")))
	client, at := s.Admin(), "/registry/secrets/default/"
	for i := range 12 {
		makeSecret(t, client, fmt.Sprintf("s%d", i))
	}
	if !bytes.Contains(stored(t, s, at+"s0"), []byte(plaintext)) {
		t.Fatal("identity comes first, and yet the secret is encrypted")
	}
	steps := []struct {
		name   string
		config string
		with   encryption.Header
	}{
		{"secretbox for what was plain", configuration("secrets", key("secretbox", "one", "1"), identity), encryption.Header{Provider: "secretbox", Key: "one"}},
		{"the next key", configuration("secrets", key("secretbox", "two", "2"), key("secretbox", "one", "1")), encryption.Header{Provider: "secretbox", Key: "two"}},
		{"another cipher", configuration("secrets", key("aesgcm", "three", "3"), key("secretbox", "two", "2")), encryption.Header{Provider: "aesgcm", Key: "three"}},
	}
	for _, step := range steps {
		before := append([]byte(nil), stored(t, s, at+"s1")...)
		change(t, s, file, step.config)
		readable(t, client, "s1")
		if !bytes.Equal(before, stored(t, s, at+"s1")) {
			t.Fatalf("%s: reading has written", step.name)
		}
		rewrite(t, s, 12)
		rewrite(t, s, 0)
		value := stored(t, s, at+"s1")
		if got := encryption.HeaderOf(value); got != step.with || bytes.Contains(value, []byte(plaintext)) {
			t.Fatalf("%s: stored with %v, want %v", step.name, got, step.with)
		}
		readable(t, client, "s1")
	}
	change(t, s, file, configuration("secrets", key("aesgcm", "three", "3")))
	readable(t, client, "s1")
	if err := ready(t, s); err != nil {
		t.Fatalf("after the old keys are gone: %v", err)
	}
}

// ready returns the error of the server's readiness.
func ready(t *testing.T, s *controltest.Server) error {
	t.Helper()
	code, text := s.Ask(t, s.HTTP(nil), http.MethodGet, "/readyz?verbose", nil, nil)
	if code != http.StatusOK {
		return fmt.Errorf("%d: %s", code, text)
	}
	return nil
}

func TestMissingKeyLocksItsResourceAlone(t *testing.T) {
	t.Parallel()
	good := configuration("secrets", key("aesgcm", "one", "1"))
	s, file := start(t, good)
	client := s.Admin()
	makeSecret(t, client, "a")
	for name, text := range map[string]string{
		"another secret under its name": configuration("secrets", key("aesgcm", "one", "2")),
		"no such key":                   configuration("secrets", key("aesgcm", "two", "2"), identity),
		"no encryption any more":        configuration("configmaps", key("aesgcm", "one", "1"), identity),
	} {
		change(t, s, file, text)
		for _, ask := range []string{"/api/v1/namespaces/default/secrets/a", "/api/v1/secrets"} {
			_, err := client.Discovery().RESTClient().Get().AbsPath(ask).DoRaw(t.Context())
			if err == nil {
				t.Fatalf("%s: %s is answered", name, ask)
			}
			var code int
			body, _ := client.Discovery().RESTClient().Get().AbsPath(ask).Do(t.Context()).StatusCode(&code).Raw()
			if code != http.StatusInternalServerError || !strings.Contains(string(body), `secrets stored with aesgcm key \"one\"`) {
				t.Fatalf("%s: %s: %d %s", name, ask, code, body)
			}
		}
		if _, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatalf("%s: others: %v", name, err)
		}
		check := s.HTTP(nil)
		code, body := s.Ask(t, check, http.MethodGet, "/readyz", nil, nil)
		if code == http.StatusOK || !strings.Contains(body, "[-]encryption failed") {
			t.Fatalf("%s: readiness: %d %s", name, code, body)
		}
		if err := shareError(status(t, s), "secrets"); err == "" {
			t.Fatalf("%s: the status shows no error", name)
		}
		change(t, s, file, good)
		readable(t, client, "a")
		controltest.Await(t, "readiness", func() bool { return ready(t, s) == nil })
	}
}

func shareError(s encryption.Status, resource string) string {
	for _, share := range s.Shares {
		if share.Resource == resource && share.Error != "" {
			return share.Error
		}
	}
	return ""
}

func TestFaultyFileChangesNothing(t *testing.T) {
	t.Parallel()
	s, file := start(t, configuration("secrets", key("secretbox", "one", "1")))
	client := s.Admin()
	makeSecret(t, client, "a")
	if err := os.WriteFile(file, []byte(configuration("secrets", "  - secretbox: {keys: [{name: one, secret: c2hvcnQ=}]}\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	controltest.Await(t, "the fault to be told", func() bool { return strings.Contains(status(t, s).Unused, "expected length") })
	readable(t, client, "a")
	if err := ready(t, s); err == nil || !strings.Contains(err.Error(), "[-]encryption failed") {
		t.Fatalf("readiness with a faulty file: %v", err)
	}
	if err := os.WriteFile(file, []byte(configuration("secrets", key("secretbox", "one", "1"))), 0o600); err != nil {
		t.Fatal(err)
	}
	controltest.Await(t, "readiness", func() bool { return ready(t, s) == nil })
}

func TestSettingsAreChecked(t *testing.T) {
	t.Parallel()
	file := func(text string, mode os.FileMode) string {
		path := controltest.File(t, "c.yaml", text)
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := configuration("secrets", key("secretbox", "one", "1"))
	for name, c := range map[string]struct {
		encryption.Settings
		want string
	}{
		"readable by others": {encryption.Settings{File: file(good, 0o640)}, "chmod 600"},
		"not there":          {encryption.Settings{File: "/nowhere/c.yaml"}, "no such file"},
		"another kind":       {encryption.Settings{File: file("apiVersion: v1\nkind: Secret\n", 0o600)}, "no kind"},
		"unknown field":      {encryption.Settings{File: file(good+"keys: 1\n", 0o600)}, "unknown field"},
		"reload of nothing":  {encryption.Settings{Reload: true}, "needs --encryption-provider-config"},
		"good":               {encryption.Settings{File: file(good, 0o600)}, ""},
		"nothing":            {encryption.Settings{}, ""},
	} {
		err := c.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), strings.Repeat("MTEx", 5)) {
			t.Errorf("%s: the error shows a key: %v", name, err)
		}
	}
}

func TestHeadersAreRead(t *testing.T) {
	for text, want := range map[string]encryption.Header{
		"":                                      {},
		"k8s\x00\n":                             {},
		"k8s:enc:":                              {Provider: "unknown"},
		"k8s:enc:aesgcm:v1:one:\x00\x01":        {Provider: "aesgcm", Key: "one"},
		"k8s:enc:secretbox:v1:a-b:::":           {Provider: "secretbox", Key: "a-b"},
		"k8s:enc:kms:v2:p:\xff\xff":             {Provider: "kms", Key: "p"},
		"k8s:enc:kms:v2:p:\x12\x03abc\x0a\x01d": {Provider: "kms", Key: "p", KeyID: "abc"},
	} {
		if got := encryption.HeaderOf([]byte(text)); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

// bounded is a context for one step.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
