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
	cmd := &cobra.Command{Use: "net", Short: "The network between nodes: checks, and routes for external routers"}
	cmd.AddCommand(newNetCheckCommand(), newNetRoutesCommand())
	return cmd
}

// apiClient is a client of the cluster's API. It finds the cluster as kubectl does: by
// the administrator's kubeconfig of this machine, or by the file of --kubeconfig.
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

// connect creates the client, for this machine's server or, when that does not answer,
// for the first other server that does.
func (c *apiClient) connect(ctx context.Context) error {
	path := c.kubeconfig
	if path == "" {
		path = c.paths.Kubeconfig()
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no %s: run this on a server, or give --kubeconfig", path)
	}
	rules, overrides := &clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, &clientcmd.ConfigOverrides{CurrentContext: kubeconfig.AnsweringContext(ctx, path)}
	var err error
	if c.rest, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig(); err != nil {
		return fmt.Errorf("cannot use the kubeconfig: %w", err)
	}
	c.rest.QPS, c.rest.Burst = -1, -1
	c.rest.WarningHandler = rest.NoWarnings{} // the commands list every kind, those that are deprecated too
	c.Interface, err = kubernetes.NewForConfig(c.rest)
	return err
}

// nodes lists all nodes.
func (c *apiClient) nodes(ctx context.Context) ([]corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, apiCallTime)
	defer cancel()
	list, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot list the nodes: %w", err)
	}
	return list.Items, nil
}
