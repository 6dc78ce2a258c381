package e2e

import (
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestFullDiskRefusesWritesAndRecovers: on a full disk a write is refused with the reason, reads go on, and writes work
// again once there is space.
func TestFullDiskRefusesWritesAndRecovers(t *testing.T) {
	c := newHost(t)
	raft := filepath.Join(c.DataDir, "server", "raft")
	if err := os.MkdirAll(raft, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", raft).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c.up()
	c.kubectl("create", "configmap", "before", "--from-literal=a=b")
	filler := filepath.Join(raft, "filler")
	if err := fill(filler); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, []byte(strings.Repeat("x", 100_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	refusal := ""
	c.eventually("a write is refused", func() error {
		out, err := c.Kubectl(t.Context(), "create", "configmap", "during-"+strings.ToLower(rand.Text()), "--from-file="+large)
		if err == nil {
			return errors.New(out)
		}
		refusal = err.Error()
		return nil
	})
	c.mustSay(refusal, "disk is full")
	t.Log(refusal)
	c.kubectl("get", "configmap", "before")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	c.eventually("writes work again", func() error {
		_, err := c.Kubectl(t.Context(), "create", "configmap", "after", "--from-literal=a=b")
		return err
	})
}

// fill writes a file until there is no space left.
func fill(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	block := make([]byte, 64<<10)
	for {
		if _, err := file.Write(block); err != nil {
			return nil
		}
	}
}

// TestDataOfAnotherVersionIsRefused: a start does not touch a directory that a newer program wrote.
func TestDataOfAnotherVersionIsRefused(t *testing.T) {
	var meta string
	_, msg := damage(t, func(_ *cluster, raft string) {
		found, err := filepath.Glob(filepath.Join(raft, "*.json"))
		if err != nil || len(found) != 1 {
			t.Fatalf("the store's identity is not where it was: %v %v", found, err)
		}
		meta = found[0]
		raw, err := os.ReadFile(meta)
		if err != nil {
			t.Fatal(err)
		}
		newer := regexp.MustCompile(`"format": ?\d+`).ReplaceAllString(string(raw), `"format":99`)
		if newer == string(raw) {
			t.Fatalf("no format in %s", raw)
		}
		if err := os.WriteFile(meta, []byte(newer), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	if !strings.Contains(msg, "newer") {
		t.Errorf("the message does not say that the data is newer: %s", msg)
	}
}
