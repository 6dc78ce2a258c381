package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/containerd/containerd/v2/cmd/containerd/command"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins" // registers containerd's plugins
)

// runContainerd is the container runtime as a child process of this binary.
func runContainerd(args []string) int {
	time.AfterFunc(settle, func() {
		debug.FreeOSMemory()
		_ = dropProgramPages() // only a saving: without it everything works
	})
	if err := command.App().Run(context.Background(), args); err != nil {
		fmt.Fprintln(os.Stderr, "containerd:", err)
		return 1
	}
	return 0
}
