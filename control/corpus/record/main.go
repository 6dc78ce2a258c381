// Record asks upstream's kube-apiserver what the tests of control/corpus compare a server with, and writes the answers
// to their testdata. It starts etcd and kube-apiserver of the directory it is given, on loopback, and ends them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/balsahq/balsa/control/corpus"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	upstream := flag.String("upstream", "", "directory of upstream's etcd and kube-apiserver")
	out := flag.String("out", "control/corpus/testdata", "directory that is written to")
	flag.Parse()
	if *upstream == "" {
		fmt.Fprintln(os.Stderr, "record: -upstream names the directory of etcd and kube-apiserver")
		os.Exit(2)
	}
	if err := record(ctx, *upstream, *out); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func record(ctx context.Context, programs, out string) error {
	server, stop, err := start(ctx, programs)
	if err != nil {
		return err
	}
	defer stop()
	surface, err := corpus.Surface(ctx, server)
	if err != nil {
		return err
	}
	fmt.Printf("%d documents\n", len(surface))
	return corpus.Save(filepath.Join(out, "surface.zst"), surface)
}
