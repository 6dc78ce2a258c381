package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/containerd/containerd/v2/cmd/containerd/command"

	"github.com/balsahq/balsa/cmd/balsa/daemon/process"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins" // registers containerd's plugins
)

// runContainerd is the container runtime as a child process of this binary.
func runContainerd(args []string) int {
	go process.ReleaseMemory(context.Background()) // ends with the process
	process.SetNice(0, slog.Default())             // the server's is not for what pods do
	if err := command.App().Run(context.Background(), args); err != nil {
		fmt.Fprintln(os.Stderr, "containerd:", err)
		return 1
	}
	return 0
}
