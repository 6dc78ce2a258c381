package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/controltest"
	"github.com/balsahq/balsa/control/encryption"
)

func TestPrintedEncryptionConfigurationIsUsedAsItIs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	text := encryption.NewConfiguration([]string{"secrets", "configmaps"}, time.Unix(0, 0), make([]byte, 32))
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	s := controltest.Start(t, func(c *control.Config) { c.Encryption = encryption.Settings{File: file} })
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	if _, err := s.Admin().CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r, err := encryption.NewRewriter(s.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := reencrypt(t.Context(), &out, r, nil); err != nil || !strings.Contains(out.String(), "everything is stored with the current keys") {
		t.Errorf("%s, %v", out.String(), err)
	}
	status, err := r.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := printEncryption(&out, status); err != nil || !strings.Contains(out.String(), `secretbox key "key-19700101-000000"  current`) {
		t.Errorf("%s, %v", out.String(), err)
	}
}

func TestLockedObjectsAreNamed(t *testing.T) {
	var out bytes.Buffer
	err := printEncryption(&out, encryption.Status{Configuration: "sha256:1", Unused: "it is faulty", Shares: []encryption.Share{
		{Resource: "secrets", Objects: 3, With: encryption.Header{Provider: "aesgcm", Key: "old"}, Error: "no such key"},
		{Resource: "configmaps", Objects: 2, Stale: true},
	}})
	if err == nil || !strings.Contains(err.Error(), `secrets: 3 objects stored with aesgcm key "old" cannot be used`) || !strings.Contains(err.Error(), "it is faulty") {
		t.Errorf("error: %v", err)
	}
	if !strings.Contains(out.String(), "locked: no such key") || !strings.Contains(out.String(), "to be rewritten") {
		t.Error(out.String())
	}
}
