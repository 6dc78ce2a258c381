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

// runContainerd runs containerd, as a child process of `balsa server` or `balsa agent`, and returns its exit status.
func runContainerd(args []string) int {
	go process.ReleaseMemory(context.Background()) // ends with the process
	process.SetNice(0, slog.Default())             // pods must not inherit the priority of the server
	if err := command.App().Run(context.Background(), args); err != nil {
		fmt.Fprintln(os.Stderr, "containerd:", err)
		return 1
	}
	return 0
}
