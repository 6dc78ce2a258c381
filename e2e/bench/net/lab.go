package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"

	"github.com/balsahq/balsa/e2e/host"
	"github.com/balsahq/balsa/e2e/lan"
)

const (
	podNetwork     = "10.244.0.0/16"
	serviceNetwork = "10.96.0.0/16"
	namespace      = "bench"
)

// lab is a few hosts, and an API server on another host that all of them use.
type lab struct {
	b          *bench
	net        *lan.Network
	server     *host.Host
	client     *kubernetes.Clientset
	kubeconfig string // for programs on any host
	hosts      []*node
}

// node is a host with a Node object and pods.
type node struct {
	place
	*lan.Machine
	number int // its pods are in 10.244.number.0/24
	name   string
	lab    *lab
	pods   []*pod
}

// newLab makes the hosts and their Node objects. No program runs on them yet.
func newLab(ctx context.Context, b *bench, hosts int) (*lab, error) {
	l := &lab{b: b}
	if err := l.open(ctx, hosts); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *lab) open(ctx context.Context, hosts int) (err error) {
	if l.net, err = lan.New(lan.Config{Machines: hosts + 1}); err != nil {
		return err
	}
	if err := l.startAPI(ctx); err != nil {
		return err
	}
	if _, err := l.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	for i, m := range l.net.Machines[1:] {
		n := &node{Machine: m, number: i + 1, name: fmt.Sprintf("host-%d", i+1), lab: l}
		if n.place, err = machinePlace(m); err != nil {
			return err
		}
		l.hosts = append(l.hosts, n)
		if err := n.register(ctx); err != nil {
			return err
		}
	}
	return nil
}

// startAPI starts a server that takes no pods.
func (l *lab) startAPI(ctx context.Context) (err error) {
	first := l.net.Machines[0]
	if l.server, err = host.New(host.Config{Balsa: l.b.balsa, Machine: first, Flags: []string{"--disable-agent"}}); err != nil {
		return err
	}
	if err := l.server.Start("server"); err != nil {
		return err
	}
	err = until(ctx, time.Minute, func() error {
		_, err := l.server.Kubectl(ctx, "get", "namespace", "default")
		return err
	})
	if err != nil {
		return fmt.Errorf("the API does not answer: %w\n%s", err, l.server.Log())
	}
	config, err := clientcmd.LoadFromFile(l.server.Kubeconfig())
	if err != nil {
		return err
	}
	for _, c := range config.Clusters {
		c.Server = "https://" + net.JoinHostPort(first.Addr.String(), "6443")
	}
	l.kubeconfig = filepath.Join(first.Dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, l.kubeconfig); err != nil {
		return err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", l.kubeconfig)
	if err != nil {
		return err
	}
	cfg.Dial, cfg.QPS, cfg.Burst, cfg.ContentType = l.net.Client.Dial, -1, -1, "application/vnd.kubernetes.protobuf"
	l.client, err = kubernetes.NewForConfig(cfg)
	return err
}

// register creates the Node object, with an address and a pod network.
func (n *node) register(ctx context.Context) error {
	nodes, pods := n.lab.client.CoreV1().Nodes(), fmt.Sprintf("10.244.%d.0/24", n.number)
	_, err := nodes.Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{corev1.LabelHostname: n.name}},
		Spec:       corev1.NodeSpec{PodCIDR: pods, PodCIDRs: []string{pods}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error { // controllers write it too
		made, err := nodes.Get(ctx, n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		made.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.Addr.String()}}
		_, err = nodes.UpdateStatus(ctx, made, metav1.UpdateOptions{})
		return err
	})
}

// dir returns a path for files of programs on this host.
func (n *node) dir(name string) string { return filepath.Join(n.Dir, name) }

// overlay starts the overlay alone on the host.
func (n *node) overlay(mode string, more ...string) (*lan.Process, error) {
	return n.Start(lan.Program{Path: n.lab.b.alone, Log: n.dir("alone.log"), Args: append([]string{
		"-kubeconfig", n.lab.kubeconfig, "-node", n.name, "-mode", mode, "-pods", podNetwork, "-services", serviceNetwork, "-dir", n.dir("alone"),
	}, more...)})
}

// ready waits until the overlay that was just started is ready.
func (n *node) ready(ctx context.Context) error {
	return until(ctx, patience, func() error {
		raw, err := os.ReadFile(n.dir("alone.log"))
		if err == nil && !strings.Contains(string(raw), "network ready") {
			err = fmt.Errorf("the overlay on %s is not ready:\n%s", n.name, raw)
		}
		return err
	})
}

func (l *lab) close() error {
	var faults []error
	for _, n := range l.hosts {
		for _, p := range n.pods {
			faults = append(faults, p.ns.Close())
		}
		faults = append(faults, n.place.ns.Close())
	}
	if l.server != nil {
		if p := l.server.Process(); p != nil {
			faults = append(faults, p.Kill9())
		}
		faults = append(faults, l.server.Close())
	}
	if l.net != nil {
		faults = append(faults, l.net.Close())
	}
	return errors.Join(faults...)
}
