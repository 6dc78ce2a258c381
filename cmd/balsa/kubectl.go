package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	"k8s.io/kubectl/pkg/cmd/util"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/kubeconfig"
	"github.com/balsahq/balsa/cmd/balsa/oldkubectl"
)

// runKubectl runs kubectl and returns its exit status. Without KUBECONFIG and
// --kubeconfig it uses the cluster of this machine: this machine's server or, when that
// does not answer, the first other server that does.
func runKubectl(args []string) int {
	args, warnings := oldkubectl.Words(args)
	for _, w := range warnings {
		fmt.Fprintln(os.Stderr, w)
	}
	os.Args = append([]string{"kubectl"}, args...) // --record writes them into objects
	if path := defaultKubeconfig(); path != "" && os.Getenv("KUBECONFIG") == "" && !hasFlag(args, "--kubeconfig") {
		os.Setenv("KUBECONFIG", path)
		if other := kubeconfig.AnsweringContext(context.Background(), path); other != "" && !hasFlag(args, "--context") && !hasFlag(args, "--cluster") {
			args = append([]string{"--context=" + other}, args...)
		}
	}
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).WithDiscoveryQPS(50)
	cmd := kubectl.NewDefaultKubectlCommandWithArgs(kubectl.KubectlOptions{
		PluginHandler: kubectl.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes),
		Arguments:     append([]string{"kubectl"}, args...),
		ConfigFlags:   flags,
		IOStreams:     streams,
	})
	oldkubectl.Accept(cmd, util.NewFactory(util.NewMatchVersionFlags(flags)), streams)
	cmd.SetArgs(args)
	// cli adds the flags of logging, such as -v.
	if err := cli.RunNoErrOutput(cmd); err != nil {
		util.CheckErr(err)
		return 1
	}
	return 0
}

func hasFlag(args []string, flag string) bool {
	for _, a := range args {
		if a == "--" {
			return false
		}
		if a == flag || strings.HasPrefix(a, flag+"=") {
			return true
		}
	}
	return false
}

// defaultKubeconfig returns the path of the administrator's kubeconfig, or "" when this user cannot read it.
func defaultKubeconfig() string {
	cfg := config.DefaultPaths()
	file, err := os.Open(cfg.Kubeconfig())
	if err != nil {
		return ""
	}
	file.Close()
	return cfg.Kubeconfig()
}

func newKubeconfigCommand() *cobra.Command {
	cfg := config.DefaultPaths()
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the administrator's kubeconfig",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, err := os.Open(cfg.Kubeconfig())
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("no cluster was started in %s yet: run `balsa up` or `balsa server`", cfg.DataDir)
			}
			if errors.Is(err, fs.ErrPermission) {
				return fmt.Errorf("only root may read %s: run this command as root", cfg.Kubeconfig())
			}
			if err != nil {
				return err
			}
			defer file.Close()
			_, err = io.Copy(cmd.OutOrStdout(), file)
			return err
		},
	}
	bindPaths(cmd.Flags(), &cfg)
	return cmd
}
