package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// balsa runs the program and returns its output.
func (c *cluster) balsa(args ...string) string {
	c.t.Helper()
	out, err := c.Balsa(c.t.Context(), args...)
	if err != nil {
		c.t.Fatalf("balsa %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// checkLogs reads the server's log three ways, and changes what is logged while the server runs.
func checkLogs(c *cluster, node string) {
	const line = "this server leads"
	for _, args := range [][]string{{"logs"}, {"logs", "--server", node}, {"logs", "--node", node, "--since", "1h"}, {"logs", "--all"}} {
		if out := c.balsa(args...); !strings.Contains(out, line) {
			c.t.Errorf("balsa %v shows no %q:\n%s", args, line, tail(out, 5))
		}
	}
	if out := c.balsa("logs", "--since", "2100-01-02T15:04:05Z"); out != "" {
		c.t.Errorf("the future's log is %q", out)
	}
	if out := c.balsa("logs", "level"); out != "info\n" {
		c.t.Errorf("the level is %q", out)
	}
	if out := c.balsa("logs", "level", "info,leader/scheduler=debug"); out != "info,leader/scheduler=debug\n" {
		c.t.Errorf("the level became %q", out)
	}
	if out := c.balsa("logs", "level", "--node", node); out != "info,leader/scheduler=debug\n" {
		c.t.Errorf("the level at the node's API is %q", out)
	}
	if out, err := c.Balsa(c.t.Context(), "logs", "level", "loud"); err == nil {
		c.t.Errorf("a level that there is not was taken: %s", out)
	}
	for _, path := range []string{"/balsa/log", "/balsa/goroutines", "/debug/flags/v", "/metrics"} {
		if out, err := c.Kubectl(c.t.Context(), "get", "--raw", path, "--as", "somebody", "--as-group", "system:authenticated"); err == nil {
			c.t.Errorf("a user without rights reads %s: %s", path, tail(out, 3))
		}
	}
}

// checkSupportBundle writes a bundle and looks for secrets in it: a Secret's value, also where a pod has printed it into the
// API, a service account's token, and a join token.
func checkSupportBundle(c *cluster, node string) {
	const secret = "the-value-of-a-secret"
	c.kubectl("create", "secret", "generic", "hidden", "--from-literal=key="+secret)
	c.kubectl("create", "configmap", "told", "--from-literal=key="+secret)
	c.kubectl("annotate", "configmap", "told", "kubernetes.io/note="+secret)
	token := strings.TrimSpace(c.kubectl("create", "token", "default"))
	c.kubectl("annotate", "configmap", "told", "kubernetes.io/token="+token)
	join, err := c.Token(c.t.Context(), "agent")
	if err != nil {
		c.t.Fatal(err)
	}
	c.kubectl("annotate", "configmap", "told", "kubernetes.io/join="+join)
	path := filepath.Join(c.t.TempDir(), "bundle.tar.gz")
	c.balsa("support-bundle", "-o", path)
	files := untar(c.t, path)
	for name, data := range files {
		for what, text := range map[string]string{"a Secret's value": secret, "a token": token, "a token's signature": token[strings.LastIndexByte(token, '.'):], "a join token's secret": join[strings.LastIndexByte(join, '.'):]} {
			if strings.Contains(data, text) {
				c.t.Errorf("%s is in %s", what, name)
			}
		}
	}
	for name, want := range map[string]string{
		"servers/" + node + "/log.txt": "this server leads", "servers/" + node + "/metrics.txt": "balsa_raft_term", "servers/" + node + "/goroutines.txt": "goroutine profile",
		"servers/" + node + "/flags.txt": "data-dir", "members.txt": node, "check.txt": "pass", "objects/nodes.json": node, "objects/configmaps.json": "told", "version.txt": "gitVersion",
	} {
		if !strings.Contains(files[name], want) {
			c.t.Errorf("%s lacks %q:\n%s\n%s", name, want, tail(files[name], 5), files["errors.txt"])
		}
	}
}

func untar(t *testing.T, path string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
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
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "balsa-support/")] = string(text)
	}
}
