package encryption_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kms "k8s.io/kms/pkg/service"

	"github.com/balsahq/balsa/control/controltest"
	"github.com/balsahq/balsa/control/encryption"
)

// plugin is a KMS plug-in of version 2. It inverts bits, and its key has a name.
type plugin struct {
	mu     sync.Mutex
	keyID  string
	broken bool
}

func (p *plugin) set(keyID string, broken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keyID, p.broken = keyID, broken
}

func (p *plugin) key() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken {
		return "", errors.New("the safe is shut")
	}
	return p.keyID, nil
}

func turned(b []byte) []byte {
	out := bytes.Clone(b)
	for i := range out {
		out[i] ^= 0x5a
	}
	return out
}

// Encrypt implements kms.Service.
func (p *plugin) Encrypt(_ context.Context, _ string, data []byte) (*kms.EncryptResponse, error) {
	id, err := p.key()
	return &kms.EncryptResponse{Ciphertext: turned(data), KeyID: id}, err
}

// Decrypt implements kms.Service.
func (p *plugin) Decrypt(_ context.Context, _ string, req *kms.DecryptRequest) ([]byte, error) {
	_, err := p.key()
	return turned(req.Ciphertext), err
}

// Status implements kms.Service.
func (p *plugin) Status(context.Context) (*kms.StatusResponse, error) {
	id, err := p.key()
	return &kms.StatusResponse{Version: "v2", Healthz: "ok", KeyID: id}, err
}

// serve runs the plug-in on a socket until the test ends.
func (p *plugin) serve(t *testing.T, socket string) {
	t.Helper()
	server, done := kms.NewGRPCService(socket, 5*time.Second, p), make(chan error, 1)
	go func() { done <- server.ListenAndServe() }()
	controltest.Await(t, "the plug-in's socket", func() bool {
		matches, err := filepath.Glob(socket)
		return err == nil && len(matches) == 1
	})
	t.Cleanup(func() {
		server.Close()
		<-done
	})
}

func TestKMSPluginFailsAndComesBack(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "kms.sock")
	provider := "  - kms: {apiVersion: v2, name: safe, endpoint: 'unix://" + socket + "', timeout: 2s}\n"
	s, file := start(t, configuration("secrets", provider, identity)) // no plug-in answers yet
	client := s.Admin()
	_, err := client.CoreV1().Secrets("default").Create(t.Context(), secret("a"), metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "secrets cannot be encrypted") {
		t.Fatalf("a secret without the plug-in: %v", err)
	}
	if _, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatalf("other kinds without the plug-in: %v", err)
	}
	if err := ready(t, s); err == nil || !strings.Contains(err.Error(), "[-]kms-providers failed") {
		t.Fatalf("readiness without the plug-in: %v", err)
	}

	p := &plugin{keyID: "first"}
	p.serve(t, socket)
	controltest.Await(t, "readiness with the plug-in", func() bool { return ready(t, s) == nil })
	makeSecret(t, client, "a")
	value := stored(t, s, "/registry/secrets/default/a")
	if got := (encryption.Header{Provider: "kms", Key: "safe", KeyID: "first"}); encryption.HeaderOf(value) != got || bytes.Contains(value, []byte(plaintext)) {
		t.Fatalf("stored with %v", encryption.HeaderOf(value))
	}

	// Objects that were read once can be read without the plug-in, and written for a while.
	p.set("first", true)
	readable(t, client, "a")
	makeSecret(t, client, "b")

	// The plug-in is back, with another key.
	p.set("second", false)
	change(t, s, file, configuration("secrets", provider, identity)+"# anew\n")
	readable(t, client, "a")
	rewrite(t, s, 2)
	if got := encryption.HeaderOf(stored(t, s, "/registry/secrets/default/a")).KeyID; got != "second" {
		t.Errorf("rewritten with %q", got)
	}
	readable(t, client, "b")
	if err := ready(t, s); err != nil {
		t.Error(err)
	}
}
