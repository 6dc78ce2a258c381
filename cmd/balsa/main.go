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

// run executes the command line and returns the exit status. containerd and kubectl
// parse their own command lines, so they are called before cobra. Errors are printed in
// one line.
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

  balsa up                 start a cluster of one machine, in the background
  balsa kubectl get pods   use it
  balsa down               stop it and leave the machine as it was`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newServerCommand(), newAgentCommand(), newUpCommand(), newDownCommand(), newStatusCommand(),
		newKubeconfigCommand(), newKubectlCommand(), newImageCommand(), newMembersCommand(), newTokenCommand(), newSecretsCommand(), newCertificatesCommand(), newSnapshotCommand(), newClusterCommand(), newNetCommand(), newCheckCommand(), newLogsCommand(), newSupportBundleCommand(), newVersionCommand())
	for _, c := range root.Commands() {
		refuseUnknown(c)
	}
	return root
}

// refuseUnknown makes commands that only group other commands fail for an unknown subcommand. Cobra would print the help and
// exit with status 0.
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
		return fmt.Errorf("unknown command %q: `%s --help` lists the commands", args[0], cmd.CommandPath())
	}
}

// newKubectlCommand exists for the help text: run handles kubectl before cobra does.
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
