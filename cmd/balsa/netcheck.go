package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/overlay/check"
)

// netCheck is one run of `balsa net check`, with its flags.
type netCheck struct {
	*apiClient
	nodeNames []string
	others    int
	within    time.Duration
	outside   string
	policy    bool
	format    string
	all       bool

	http *http.Client
}

// openTime bounds the time in which a node attaches a probe.
const openTime = 20 * time.Second

func newNetCheckCommand() *cobra.Command {
	n := &netCheck{apiClient: newAPIClient(), others: 24, within: 90 * time.Second, outside: "example.com", policy: true, format: "table"}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Test all connections between nodes as pods use them, and say what is broken and where",
		Long: `Every node attaches a network namespace to its pod network, like a pod. From there it
tests pods of other nodes by TCP and UDP, nodes, Services, NodePorts, names inside and
outside the cluster, packets of the largest size that pods send, and whether a
NetworkPolicy closes a pod. A table shows what works; each fault has a line with the
reason. The exit status is 1 when something is broken.

The command needs the rights of an administrator. It removes everything that it
creates: the probes, and a namespace with Services and, unless --policy=false, a pod on
each node.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return n.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	n.bind(cmd.Flags())
	f := cmd.Flags()
	f.StringSliceVar(&n.nodeNames, "nodes", nil, "check only these nodes (default: all)")
	f.IntVar(&n.others, "others", n.others, "how many other nodes each node tests; 0 for all")
	f.DurationVar(&n.within, "timeout", n.within, "bound for the whole check, at most 10m")
	f.StringVar(&n.outside, "outside-name", n.outside, "name outside the cluster that pods must be able to resolve; \"\" for none")
	f.BoolVar(&n.policy, "policy", n.policy, "also check NetworkPolicy, with a small pod on each node")
	f.StringVarP(&n.format, "output", "o", n.format, "table or json")
	f.BoolVar(&n.all, "all", n.all, "show all connections that work, however many there are")
	return cmd
}

func (n *netCheck) run(ctx context.Context, out io.Writer) error {
	if n.format != "table" && n.format != "json" {
		return fmt.Errorf("--output %q: give table or json", n.format)
	}
	if n.within < time.Second || n.within > 10*time.Minute || n.others < 0 {
		return errors.New("give a --timeout from 1s to 10m, and --others of 0 or more")
	}
	if err := n.connect(ctx); err != nil {
		return err
	}
	var err error
	if n.http, err = rest.HTTPClientFor(n.rest); err != nil {
		return err
	}
	cfg, err := n.config(ctx)
	if err != nil {
		return err
	}
	report, err := check.Run(ctx, cfg)
	if err != nil {
		return err
	}
	findings := check.Diagnose(report)
	if n.format == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(struct {
			Findings []check.Finding `json:"findings"`
			*check.Report
		}{append([]check.Finding{}, findings...), report})
	} else {
		err = check.Write(out, report, findings, n.all)
	}
	if err == nil && len(findings) > 0 {
		err = fmt.Errorf("broken: %d", len(findings))
	}
	return err
}

func (n *netCheck) config(ctx context.Context) (check.Config, error) {
	list, err := n.nodes(ctx)
	if err != nil {
		return check.Config{}, err
	}
	objects := &netObjects{client: n.Interface}
	cfg := check.Config{Call: n.call, Publish: objects.publish, Others: n.others, Within: n.within, OutsideName: n.outside}
	if n.policy {
		cfg.Policy = objects.policy
	}
	for i := range list {
		if len(n.nodeNames) == 0 || slices.Contains(n.nodeNames, list[i].Name) {
			cfg.Nodes = append(cfg.Nodes, checkedNode(&list[i]))
		}
	}
	for _, name := range n.nodeNames {
		if !slices.ContainsFunc(cfg.Nodes, func(t check.NodeTarget) bool { return t.Name == name }) {
			return cfg, fmt.Errorf("--nodes: there is no node %s", name)
		}
	}
	if len(cfg.Nodes) == 0 {
		return cfg, errors.New("the cluster has no node")
	}
	service, err := n.CoreV1().Services(metav1.NamespaceSystem).Get(ctx, "kube-dns", metav1.GetOptions{})
	if err != nil {
		return cfg, fmt.Errorf("cannot find the address of the cluster's DNS: %w", err)
	}
	if cfg.DNS, err = netip.ParseAddr(service.Spec.ClusterIP); err != nil {
		return cfg, fmt.Errorf("cannot find the address of the cluster's DNS: the Service kube-system/kube-dns has no cluster address: %w", err)
	}
	cfg.ClusterName = "kubernetes.default.svc." + n.domain(ctx, cfg.Nodes)
	return cfg, nil
}

// domain returns the cluster's DNS domain as the first node that answers has it, or the default one.
func (n *netCheck) domain(ctx context.Context, nodes []check.NodeTarget) string {
	for _, t := range nodes[:min(len(nodes), 3)] {
		var answer struct {
			Config struct {
				Domain string `json:"clusterDomain"`
			} `json:"kubeletconfig"`
		}
		ctx, cancel := context.WithTimeout(ctx, apiCallTime/3)
		err := n.node(ctx, http.MethodGet, t.Name, "/configz", nil, &answer)
		cancel()
		if err == nil && answer.Config.Domain != "" {
			return answer.Config.Domain
		}
	}
	return config.DefaultCluster().ClusterDomain
}

func checkedNode(n *corev1.Node) check.NodeTarget {
	t := check.NodeTarget{Name: n.Name, PodCIDR: n.Spec.PodCIDR}
	port := uint16(10250)
	if p := n.Status.DaemonEndpoints.KubeletEndpoint.Port; p > 0 && p < 1<<16 {
		port = uint16(p)
	}
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err == nil && a.Type == corev1.NodeInternalIP && !t.Address.IsValid() {
			t.Address = netip.AddrPortFrom(ip, port)
		}
	}
	return t
}

// call sends a request of the check to a node, through the API server.
func (n *netCheck) call(ctx context.Context, node string, r *check.Request) (*check.Reply, error) {
	if r.Probe == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, openTime)
		defer cancel()
	}
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	reply := new(check.Reply)
	return reply, n.node(ctx, http.MethodPost, node, check.Path, body, reply)
}

// mostAnswer bounds the bytes of a node's answer that are read.
const mostAnswer = 16 << 20

// node sends one request to a node's kubelet API, through the API server.
func (n *netCheck) node(ctx context.Context, method, node, path string, body []byte, answer any) error {
	base, _, err := rest.DefaultServerUrlFor(n.rest)
	if err != nil {
		return err
	}
	target := strings.TrimSuffix(base.String(), "/") + "/api/v1/nodes/" + url.PathEscape(node) + "/proxy" + path
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := n.http.Do(req)
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("the node did not answer in time")
	}
	if err != nil {
		return err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, mostAnswer))
	if err != nil {
		return fmt.Errorf("cannot read the node's answer: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return refusal(res.StatusCode, raw)
	}
	if err := json.Unmarshal(raw, answer); err != nil {
		return fmt.Errorf("cannot decode the node's answer: %w", err)
	}
	return nil
}

// refusal returns the error in the answer: the API server sends a Status, a node a line of
// text.
func refusal(code int, raw []byte) error {
	var status metav1.Status
	if json.Unmarshal(raw, &status) == nil && status.Message != "" {
		return &apierrors.StatusError{ErrStatus: status}
	}
	text := strings.TrimSpace(string(raw))
	if code == http.StatusNotFound && strings.HasPrefix(text, "404 page") {
		return errors.New("the node knows no network check: it runs another version or is no node of Balsa")
	}
	if text == "" {
		text = http.StatusText(code)
	}
	return errors.New(text)
}
