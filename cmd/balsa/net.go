package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/kubeconfig"
)

// apiCallTime bounds one request to the API.
const apiCallTime = 15 * time.Second

func newNetCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "net", Short: "The network between nodes: what is broken, and routes for others"}
	cmd.AddCommand(newNetCheckCommand(), newNetRoutesCommand())
	return cmd
}

// apiClient finds the cluster's API as kubectl does: by the administrator's
// kubeconfig of this machine, or another one.
type apiClient struct {
	paths      config.Paths
	kubeconfig string

	rest *rest.Config
	kubernetes.Interface
}

func newAPIClient() *apiClient { return &apiClient{paths: config.DefaultPaths()} }

func (c *apiClient) bind(f *pflag.FlagSet) {
	bindPaths(f, &c.paths)
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "the administrator's kubeconfig (default: the one in the data directory)")
}

// connect makes the client, of the server at hand or of the first other one that
// answers.
func (c *apiClient) connect(ctx context.Context) error {
	path := c.kubeconfig
	if path == "" {
		path = c.paths.Kubeconfig()
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not there: run this on a server, or give --kubeconfig", path)
	}
	rules, overrides := &clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, &clientcmd.ConfigOverrides{CurrentContext: kubeconfig.AnsweringContext(ctx, path)}
	var err error
	if c.rest, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig(); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	c.rest.QPS, c.rest.Burst = -1, -1
	c.Interface, err = kubernetes.NewForConfig(c.rest)
	return err
}

// nodes lists all nodes.
func (c *apiClient) nodes(ctx context.Context) ([]corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, apiCallTime)
	defer cancel()
	list, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	return list.Items, nil
}
