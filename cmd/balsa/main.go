// Command balsa is a Kubernetes cluster in one binary: see `balsa --help`.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run(os.Args))
}

// run dispatches the two programs that bring a command line of their own
// before cobra sees anything, and reports an error in one line.
func run(args []string) int {
	if filepath.Base(args[0]) == "kubectl" {
		return runKubectl(args[1:])
	}
	if len(args) > 1 {
		switch args[1] {
		case "containerd":
			return runContainerd(args[1:])
		case "kubectl":
			return runKubectl(args[2:])
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "balsa:", err)
		return 1
	}
	return 0
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "balsa",
		Short: "A Kubernetes cluster in one binary",
		Long: `Balsa is a Kubernetes cluster in one binary.

  balsa up                 start a cluster of one on this machine, in the background
  balsa kubectl get pods   talk to it
  balsa down               stop it and leave the machine as it was`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newServerCommand(), newAgentCommand(), newUpCommand(), newDownCommand(), newStatusCommand(),
		newKubeconfigCommand(), newKubectlCommand(), newImageCommand(), newMembersCommand(), newTokenCommand(), newSecretsCommand(), newCertificatesCommand(), newSnapshotCommand(), newClusterCommand(), newNetCommand(), newCheckCommand(), newVersionCommand())
	for _, c := range root.Commands() {
		refuseUnknown(c)
	}
	return root
}

// refuseUnknown has commands that only hold others say so of a word they do not know; cobra would print their help and
// count it as done.
func refuseUnknown(c *cobra.Command) {
	for _, sub := range c.Commands() {
		refuseUnknown(sub)
	}
	if c.Runnable() || !c.HasSubCommands() {
		return
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return fmt.Errorf("unknown command %q: `%s --help` lists those there are", args[0], cmd.CommandPath())
	}
}

// newKubectlCommand only documents: run takes these arguments before cobra.
func newKubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl",
		Short:              "The Kubernetes command line, with this cluster's kubeconfig by default",
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if code := runKubectl(args); code != 0 {
				os.Exit(code)
			}
			return nil
		},
	}
}
