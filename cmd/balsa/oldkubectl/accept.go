package oldkubectl

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// Accept changes the commands of root, which is kubectl.
func Accept(root *cobra.Command, f cmdutil.Factory, streams genericiooptions.IOStreams) {
	for _, c := range root.Commands() {
		switch c.Name() {
		case "run":
			acceptRun(c, f, streams)
		case "exec":
			acceptExec(c, streams)
		}
	}
}

// acceptExec lets the command of `kubectl exec` follow the pod without --.
func acceptExec(exec *cobra.Command, streams genericiooptions.IOStreams) {
	today := exec.Run
	exec.Run = func(cmd *cobra.Command, args []string) {
		if cmd.ArgsLenAtDash() < 0 && len(args) > 1 {
			fmt.Fprintln(streams.ErrOut, "Warning: kubectl exec POD COMMAND is deprecated: use kubectl exec POD -- COMMAND")
			// The flags keep the values they have; parsing again records where -- is.
			cmdutil.CheckErr(cmd.ParseFlags(append([]string{args[0], "--"}, args[1:]...)))
		}
		today(cmd, args)
	}
}

// Words returns the command line with the old spelling of flags replaced, and the warnings about it.
func Words(args []string) (words, warnings []string) {
	for i, word := range args {
		if word == "--" {
			return append(words, args[i:]...), warnings
		}
		if word == "-record" {
			word = "--record"
			warnings = append(warnings, "Warning: -record is not a flag: read as --record")
		}
		words = append(words, word)
	}
	return words, warnings
}
