package etcd

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/balsahq/balsa/raftstore"
)

// TestServe serves the API for other programs, as etcdctl and etcd's benchmark,
// until it is interrupted: BALSA_ETCD_SERVE is the data directory, where the
// certificates are put, too (ca.crt, client.crt, client.key), and
// BALSA_ETCD_LISTEN the address.
func TestServe(t *testing.T) {
	dir := os.Getenv("BALSA_ETCD_SERVE")
	if dir == "" {
		t.Skip("serves other programs by hand")
	}
	f := serve(t, raftstore.Config{Dir: dir + "/data"}, nil)
	for _, n := range []string{"ca.crt", "server.crt", "server.key", "client.crt", "client.key"} {
		b, err := os.ReadFile(f.ca.path(n))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/"+n, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Println("serving on", f.addr)
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	<-ctx.Done()
}
