package localcsi

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
)

// TestSanity is the conformance suite of the CSI project, over the driver's socket.
func TestSanity(t *testing.T) {
	root := t.TempDir()
	d := reopen(t, root)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(d.cfg.Dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	})
	config := sanity.NewTestConfig()
	config.Address = "unix:" + socketPath(root)
	config.TargetPath, config.StagingPath = filepath.Join(root, "target"), filepath.Join(root, "staging")
	config.TestVolumeSize, config.TestVolumeExpandSize = 1<<20, 2<<20
	sanity.Test(t, config)
}
