package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balsahq/balsa/e2e/host"
)

// binary is the program under test; kubectlBinary is upstream's client.
var (
	binary        = fromEnv("BALSA_BIN", "../bin/balsa")
	kubectlBinary = fromEnv("KUBECTL_BIN", "../bin/kubectl")
)

func fromEnv(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

// cluster is one host with a running cluster.
type cluster struct {
	*host.Host
	t *testing.T
}

// newHost makes a machine without running programs.
func newHost(t *testing.T, flags ...string) *cluster {
	t.Helper()
	h, err := host.New(host.Config{Balsa: binary, Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Host: h, t: t}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the server's log:\n%s", tail(h.Log(), 60))
		}
		if err := h.Close(); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return c
}

// start returns a working cluster without the demonstration.
func start(t *testing.T, flags ...string) *cluster {
	t.Helper()
	c := newHost(t, flags...)
	c.up()
	return c
}

func (c *cluster) up() {
	c.t.Helper()
	if out, err := c.Up(c.t.Context(), "--demo=false"); err != nil {
		c.t.Fatalf("balsa up: %v\n%s\nlog:\n%s", err, out, tail(c.Log(), 60))
	}
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// kubectl runs a command that has to succeed.
func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	out, err := c.Kubectl(ctx, args...)
	if err != nil {
		c.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// refused runs a command that has to fail, and returns its output.
func (c *cluster) refused(args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	out, err := c.Kubectl(ctx, args...)
	if err == nil {
		c.t.Fatalf("kubectl %s: succeeded, want a refusal\n%s", strings.Join(args, " "), out)
	}
	return err.Error()
}

// apply passes a manifest to kubectl apply.
func (c *cluster) apply(manifest string, args ...string) string {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return c.kubectl(append([]string{"apply", "-f", path}, args...)...)
}

// eventually repeats check until it returns nil.
func (c *cluster) eventually(what string, check func() error) {
	c.t.Helper()
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			c.t.Fatalf("%s: still not so after two minutes: %v", what, err)
		}
	}
}

// wants returns a check that the output of a kubectl command contains text.
func (c *cluster) wants(text string, args ...string) func() error {
	return func() error {
		out, err := c.Kubectl(c.t.Context(), args...)
		if err != nil {
			return err
		}
		if !strings.Contains(out, text) {
			return fmt.Errorf("%q is not in the output of kubectl %s:\n%s", text, strings.Join(args, " "), out)
		}
		return nil
	}
}

// background starts a kubectl command that runs until the test ends it.
type background struct {
	mu  sync.Mutex
	out bytes.Buffer
	end func()
}

func (b *background) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out.Write(p)
}

func (b *background) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out.String()
}

// says returns a check that the command's output so far contains text.
func (b *background) says(text string) func() error {
	return func() error {
		if !strings.Contains(b.String(), text) {
			return fmt.Errorf("%q is not in the output so far:\n%s", text, tail(b.String(), 20))
		}
		return nil
	}
}

func (c *cluster) inBackground(args ...string) *background {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	b := &background{}
	cmd := c.KubectlCommand(ctx, args...)
	cmd.Stdout, cmd.Stderr = b, b
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		cancel()
		c.t.Fatal(err)
	}
	b.end = sync.OnceFunc(func() { cancel(); _ = cmd.Wait() })
	c.t.Cleanup(b.end)
	return b
}
