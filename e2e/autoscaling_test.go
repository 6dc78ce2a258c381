package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestTopAndAutoscaling: kubectl top shows what the node and its pods use.
func TestTopAndAutoscaling(t *testing.T) {
	c := start(t, "--metric-resolution=2s")
	c.kubectl("create", "deployment", "hello", "--image=balsahq/hello:1", "--replicas=2")
	c.kubectl("rollout", "status", "deployment/hello", "--timeout=60s")
	c.eventually("kubectl top shows the node and both pods", func() error {
		return errors.Join(c.topShows(1, "node"), c.topShows(2, "pod", "-l", "app=hello"))
	})
}

// topShows says whether kubectl top prints so many rows, each with processor time and memory.
func (c *cluster) topShows(rows int, args ...string) error {
	out, err := c.Kubectl(c.t.Context(), append([]string{"top"}, append(args, "--no-headers")...)...)
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for _, line := range lines {
		if f := strings.Fields(line); len(f) < 3 || !strings.HasSuffix(f[1], "m") || !strings.Contains(line, "Mi") {
			return fmt.Errorf("kubectl top %v: %q", args, line)
		}
	}
	if len(lines) != rows {
		return fmt.Errorf("kubectl top %v shows %d rows, want %d: %s", args, len(lines), rows, out)
	}
	return nil
}
