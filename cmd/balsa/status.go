package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/process"
)

// errNotRunning makes `balsa status` exit with status 1, for scripts.
var errNotRunning = errors.New("no server runs on this machine: start one with `balsa up` or `balsa server`")

func newStatusCommand() *cobra.Command {
	cfg := config.DefaultPaths()
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what runs on this machine",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pid := process.RunningPID(cfg.PIDFile())
			if pid == 0 {
				return errNotRunning
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
			defer cancel()
			return printStatus(ctx, cmd.OutOrStdout(), &cfg, pid)
		},
	}
	bindPaths(cmd.Flags(), &cfg)
	return cmd
}

func printStatus(ctx context.Context, w io.Writer, cfg *config.Paths, pid int) error {
	restConfig, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig())
	if err != nil {
		return fmt.Errorf("cannot read the administrator's kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		return err
	}
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	defer out.Flush()
	fmt.Fprintf(out, "server\tprocess %d, up %s\n", pid, uptime(pid))
	state := readiness(ctx, client)
	fmt.Fprintf(out, "API\t%s\t%s\n", restConfig.Host, state)
	if state != apiReady {
		if err := encryptionTrouble(ctx, restConfig); err != nil {
			fmt.Fprintf(out, "encryption\t%s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	leases, err := client.CoordinationV1().Leases(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("cannot read from the API: %w", err)
	}
	for _, l := range leases.Items {
		if l.Spec.HolderIdentity != nil {
			fmt.Fprintf(out, "leader\t%s\t%s\n", l.Name, *l.Spec.HolderIdentity)
		}
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range nodes.Items {
		printNode(out, &nodes.Items[i], pods.Items)
	}
	return nil
}

const apiReady = "ready"

func readiness(ctx context.Context, client kubernetes.Interface) string {
	if _, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return "not ready: " + err.Error()
	}
	return apiReady
}

func printNode(out io.Writer, node *corev1.Node, pods []corev1.Pod) {
	state := "not ready"
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			state = "ready"
		}
	}
	running, total := 0, 0
	for _, p := range pods {
		if p.Spec.NodeName != node.Name {
			continue
		}
		total++
		if p.Status.Phase == corev1.PodRunning {
			running++
		}
	}
	fmt.Fprintf(out, "node\t%s\t%s\t%d of %d pods running\n", node.Name, state, running, total)
}

// uptime returns how long a process has run, or "?". proc(5) has its start time in
// hundredths of a second since the machine's start.
func uptime(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "?"
	}
	machine, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return "?"
	}
	_, afterName, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(afterName)
	const startTime = 22 - 3 // counted from the state, the third field
	if len(fields) <= startTime {
		return "?"
	}
	var up, start float64
	if _, err := fmt.Sscan(fields[startTime], &start); err != nil {
		return "?"
	}
	if _, err := fmt.Sscan(string(machine), &up); err != nil {
		return "?"
	}
	return duration.HumanDuration(time.Duration((up - start/100) * float64(time.Second)))
}
