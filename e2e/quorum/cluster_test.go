package quorum

import (
	"context"
	"os"
	"testing"
	"time"
)

// etcdBinary returns upstream's server. Without it this package cannot be tested apart from the product, whose own
// tests use it.
func etcdBinary(t *testing.T) string {
	t.Helper()
	path := os.Getenv("UPSTREAM_ETCD")
	if path == "" {
		t.Skip("UPSTREAM_ETCD does not name upstream's etcd")
	}
	return path
}

func TestMembersComeAndGo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := New(Config{System: "etcd", Binary: etcdBinary(t), Servers: 3, DiskBytes: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.Form(ctx))
	leader, err := c.Leader(ctx)
	must(err)
	next := (leader + 1) % 3
	must(c.MoveLeader(ctx, next))
	if now, err := c.Leader(ctx); err != nil || now != next {
		t.Errorf("after moving it, %d leads (%v), want %d", now, err, next)
	}
	_, err = c.Replace(ctx, next)
	must(err)
	for i := range 3 {
		must(c.Ready(ctx, i))
	}
	must(c.Process(0).Stop(10 * time.Second))
	must(c.Start(ctx, 0))
	must(c.Ready(ctx, 0))
}
