// Command alone runs only the network of one node, in the network namespace in which it is started, against any Kubernetes
// API. So the network can be measured without the rest of a node, and compared with programs that do only that.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/balsahq/balsa/overlay"
	"github.com/balsahq/balsa/overlay/routes"
)

// The product sets the same for its memory: see cmd/balsa/daemon/process.
const (
	gcPercent = 75
	settle    = 5 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "alone:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API")
	node := flag.String("node", "", "the name of the Node object that this is")
	mode := flag.String("mode", string(routes.Auto), "how other nodes' pods are reached")
	offload := flag.Bool("offload", false, "leave checksums of packets in the VXLAN tunnel to the link below")
	pods := flag.String("pods", "10.244.0.0/16", "the cluster's pod network")
	services := flag.String("services", "10.96.0.0/16", "the cluster's network of Services")
	dir := flag.String("dir", "", "where to keep what must survive a restart")
	flag.Parse()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	client, err := connect(*kubeconfig)
	if err != nil {
		return err
	}
	podNet, err := netip.ParsePrefix(*pods)
	if err != nil {
		return fmt.Errorf("-pods: %w", err)
	}
	serviceNet, err := netip.ParsePrefix(*services)
	if err != nil {
		return fmt.Errorf("-services: %w", err)
	}
	if *dir == "" {
		return errors.New("-dir is missing")
	}
	network, err := overlay.New(overlay.Config{
		NodeName: *node, Informers: overlay.NewInformers(client), Mode: routes.Mode(*mode), Offload: *offload,
		PodCIDRs: []netip.Prefix{podNet}, ServiceCIDRs: []netip.Prefix{serviceNet},
		CNIConfDir: filepath.Join(*dir, "net.d"), StateDir: filepath.Join(*dir, "state"),
	})
	if err != nil {
		return err
	}
	go func() {
		select {
		case <-network.Ready():
		case <-ctx.Done():
			return
		}
		fmt.Println("network ready")
		select {
		case <-time.After(settle):
			debug.FreeOSMemory()
		case <-ctx.Done():
		}
	}()
	return network.Run(ctx)
}

// connect returns a client with the same settings as an agent's.
func connect(kubeconfig string) (kubernetes.Interface, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("-kubeconfig: %w", err)
	}
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = cfg.ContentType + ",application/json"
	cfg.QPS, cfg.Burst, cfg.DisableCompression = -1, -1, true
	return kubernetes.NewForConfig(cfg)
}
