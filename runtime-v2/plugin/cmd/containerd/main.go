// Command containerd is containerd with the task manager of this project in the place of its own. All else is as upstream
// builds it: the same command line, the same configuration, the same plugins.
package main

import (
	"context"
	"fmt"
	"os"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"
	"github.com/containerd/containerd/v2/cmd/containerd/command"

	"containerd-task-manager/plugin"
)

func main() {
	plugin.Replace()
	if err := command.App().Run(context.Background(), os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "containerd:", err)
		os.Exit(1)
	}
}
