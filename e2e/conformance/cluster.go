package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/balsahq/balsa/e2e/host"
	"github.com/balsahq/balsa/e2e/lan"
)

// cluster is a few hosts that take pods.
type cluster struct {
	o          *options
	net        *lan.Network
	hosts      []*host.Host // the server first
	kubeconfig string       // for the clients' machine
}

// newCluster starts all hosts, with all images.
func newCluster(ctx context.Context, o *options) (*cluster, error) {
	c := &cluster{o: o}
	if err := c.open(ctx); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *cluster) open(ctx context.Context) (err error) {
	if c.net, err = lan.New(lan.Config{Machines: c.o.nodes, OwnInit: true}); err != nil {
		return err
	}
	for i, m := range c.net.Machines {
		flags, err := c.flags(ctx, i, m)
		if err != nil {
			return err
		}
		h, err := host.New(host.Config{Balsa: c.o.balsa, Machine: m, Flags: flags})
		if err != nil {
			return err
		}
		c.hosts = append(c.hosts, h)
		if err := c.start(ctx, i); err != nil {
			return fmt.Errorf("%w\n%s", err, h.Log())
		}
	}
	fmt.Printf("%d nodes are ready\n", len(c.hosts))
	if err := c.load(ctx); err != nil {
		return err
	}
	return c.writeKubeconfig()
}

// flags returns the flags of a host's node. With both families, it also gives the host its IPv6 address.
func (c *cluster) flags(ctx context.Context, i int, m *lan.Machine) ([]string, error) {
	if !c.o.dual {
		return c.o.flags, nil
	}
	six := fmt.Sprintf("fd00:98::%d", i+1)
	if out, err := m.Command(ctx, "ip", "-6", "addr", "add", six+"/64", "dev", "eth0", "nodad").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("address %s: %w: %s", six, err, out)
	}
	return append([]string{"--node-ip=" + m.Addr.String() + "," + six, "--cluster-cidr=10.244.0.0/16,fd00:244::/48", "--service-cidr=10.96.0.0/16,fd00:96::/108"}, c.o.flags...), nil
}

// start starts one host and waits until its node is ready.
func (c *cluster) start(ctx context.Context, i int) error {
	server, h := c.hosts[0], c.hosts[i]
	if i == 0 {
		if err := h.Start("server"); err != nil {
			return err
		}
	} else {
		token, err := server.Token(ctx, "agent")
		if err != nil {
			return err
		}
		if err := h.Start("agent", "--join="+net.JoinHostPort(server.Addr.String(), "6443"), "--token="+token); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		out, err := server.Kubectl(ctx, "get", "node", h.NodeName(), "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && strings.Contains(out, "True") {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s does not become ready: %s %w", h.NodeName(), out, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// load imports the images on every host.
func (c *cluster) load(ctx context.Context) error {
	archives, err := filepath.Glob(filepath.Join(c.o.images, "*.tar"))
	if err != nil {
		return err
	}
	faults := make([]error, len(c.hosts))
	var joined sync.WaitGroup
	for i, h := range c.hosts {
		joined.Go(func() {
			for _, archive := range archives {
				if _, err := h.Balsa(ctx, "image", "import", archive); err != nil {
					faults[i] = errors.Join(faults[i], fmt.Errorf("%s: %w", filepath.Base(archive), err))
				}
			}
		})
	}
	joined.Wait()
	fmt.Printf("%d images are on every node\n", len(archives))
	return errors.Join(faults...)
}

func (c *cluster) writeKubeconfig() error {
	config, err := clientcmd.LoadFromFile(c.hosts[0].Kubeconfig())
	if err != nil {
		return err
	}
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + net.JoinHostPort(c.hosts[0].Addr.String(), "6443")
	}
	c.kubeconfig = filepath.Join(c.o.out, "kubeconfig")
	return clientcmd.WriteToFile(*config, c.kubeconfig)
}

func (c *cluster) close() error {
	var faults []error
	for _, h := range c.hosts {
		if p := h.Process(); p != nil {
			faults = append(faults, p.Kill9())
		}
		faults = append(faults, h.Close())
	}
	if c.net != nil {
		faults = append(faults, c.net.Close())
	}
	return errors.Join(faults...)
}
