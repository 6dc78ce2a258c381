package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/containerd/containerd/v2/cmd/containerd/command"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins" // registers containerd's plugins
)

// runContainerd is the container runtime as a child process of this binary.
func runContainerd(args []string) int {
	go giveBack(context.Background()) // ends with the process
	setNice(0, slog.Default())        // the server's is not for what pods do
	if err := command.App().Run(context.Background(), args); err != nil {
		fmt.Fprintln(os.Stderr, "containerd:", err)
		return 1
	}
	return 0
}
