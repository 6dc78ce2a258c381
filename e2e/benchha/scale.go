package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"github.com/balsahq/balsa/e2e/figures"
)

// scaleLine is how the store's benchmark prints a figure: "scale: name: value unit".
var scaleLine = regexp.MustCompile(`scale: ([^:]+): ([0-9.]+) ?(\S*)`)

var scaleAims = map[string]string{"write stall during a snapshot": "20"}

// measureScale runs the store's own benchmark of a large state and takes its
// figures into the table.
func measureScale(ctx context.Context, b *bench) error {
	if b.balsa == "" {
		return nil
	}
	b.progress("scale: the store's own benchmark")
	args := []string{"test", "-run", "^TestScale$", "-count=1", "-timeout=30m", "-v", "./raftstore", "-args", "-scale"}
	if b.quick {
		args = append(args, "-scale-keys=50000", "-scale-bytes=100000000")
	}
	raw, err := exec.CommandContext(ctx, "go", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, raw[max(0, len(raw)-2000):])
	}
	found := false
	for _, m := range scaleLine.FindAllStringSubmatch(string(raw), -1) {
		value, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return err
		}
		found = true
		name := strings.TrimSpace(m[1])
		b.table.Add(figures.Ours, figures.Of("scale: "+name, m[3], scaleAims[name]), value)
	}
	if !found {
		return fmt.Errorf("the store's benchmark printed no figure:\n%s", raw[max(0, len(raw)-2000):])
	}
	return nil
}
