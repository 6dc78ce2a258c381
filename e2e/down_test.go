package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/balsahq/balsa/e2e/host"
	"github.com/balsahq/balsa/e2e/lan"
)

// TestDownLeavesTheHostAsItWas compares processes, mounts, links, routes, rules, control groups and namespaces before
// up with those after down.
func TestDownLeavesTheHostAsItWas(t *testing.T) {
	c := newHost(t)
	before := inventory(t, c.Host)
	if out, err := c.Up(t.Context()); err != nil {
		t.Fatalf("balsa up: %v\n%s", err, out)
	}
	if same := slices.Equal(before, inventory(t, c.Host)); same {
		t.Fatal("the inventory does not see a running cluster: this test cannot fail")
	}
	if out, err := c.Balsa(t.Context(), "down", "--cgroup-root=/"+c.Name, "--log-dir="+filepath.Join(c.DataDir, "log")); err != nil {
		t.Fatalf("balsa down: %v\n%s", err, out)
	}
	after := inventory(t, c.Host)
	for _, line := range after {
		if !slices.Contains(before, line) {
			t.Errorf("left behind: %s", line)
		}
	}
	for _, line := range before {
		if !slices.Contains(after, line) {
			t.Errorf("taken away: %s", line)
		}
	}
}

// inventory lists everything that a cluster makes on a host, one item a line.
func inventory(t *testing.T, h *host.Host) []string {
	t.Helper()
	var lines []string
	add := func(kind, text string) {
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" {
				lines = append(lines, kind+" "+line)
			}
		}
	}
	for kind, args := range map[string][]string{
		"link":  {"cat", "/proc/net/dev_snmp6"},
		"route": {"cat", "/proc/net/route"},
		"fib":   {"cat", "/proc/net/fib_trie"},
	} {
		if kind == "link" {
			args = []string{"ls", "/proc/net/dev_snmp6"}
		}
		out, err := h.Command(t.Context(), args[0], args[1:]...).Output()
		if err != nil {
			t.Fatal(err)
		}
		add(kind, string(out))
	}
	rules, err := h.Ruleset()
	if err != nil {
		t.Fatal(err)
	}
	add("nftables", strings.Join(rules, "\n"))
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if point := strings.Fields(line)[4]; !ofAnotherTest(h, point) {
			add("mount", point)
		}
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + h.Name)
	unified, _ := filepath.Glob("/sys/fs/cgroup/" + h.Name)
	add("cgroup", strings.Join(append(groups, unified...), "\n"))
	namespaces, _ := filepath.Glob("/run/netns/*")
	namespaces = slices.DeleteFunc(namespaces, func(path string) bool { return ofAnotherTest(h, path) })
	add("netns", strings.Join(namespaces, "\n"))
	add("process", processesNaming(h))
	return lines
}

// ofAnotherTest reports whether a path belongs to a test of another package that runs at the same time: to its network
// of namespaces, or to its temporary directory.
func ofAnotherTest(h *host.Host, path string) bool {
	switch {
	case strings.HasPrefix(path, h.DataDir), strings.HasPrefix(path, h.RunDir):
		return false
	case strings.HasPrefix(path, os.TempDir()+"/"):
		return true
	}
	return lan.Made(path)
}

// processesNaming lists processes whose command line names this host's directories, or that are in one of its control
// groups.
func processesNaming(h *host.Host) string {
	var out strings.Builder
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			continue // it has ended, and its parent, perhaps init, has not waited for it yet
		}
		group, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		if strings.Contains(string(cmdline), h.DataDir) || strings.Contains(string(cmdline), h.RunDir) || strings.Contains(string(group), h.Name) {
			fmt.Fprintf(&out, "%s %s\n", filepath.Base(dir), strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return out.String()
}
