package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balsahq/balsa/overlay/routes"
)

// routeFormats are the values of --output.
var routeFormats = map[string]func(io.Writer, []routes.Static) error{
	"ip": ipRoutes, "bird": birdRoutes, "frr": frrRoutes, "json": jsonRoutes,
}

func newNetRoutesCommand() *cobra.Command {
	c, format := newAPIClient(), "ip"
	cmd := &cobra.Command{
		Use:   "routes",
		Short: "Print static routes to the pods of each node, for an external router",
		Long: `Prints a static route to the pods of every node, with the node's address as the next
hop: for a router that is no node, or for a BGP speaker that exports the routes. Run it
again when nodes are added or removed.

  balsa net routes                    ip route replace … commands
  balsa net routes --output bird      static protocols for BIRD 2
  balsa net routes --output frr       static routes for FRR
  balsa net routes --output json      a list of node, pods, via`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			write := routeFormats[format]
			if write == nil {
				return fmt.Errorf("--output %q: give ip, bird, frr or json", format)
			}
			if err := c.connect(cmd.Context()); err != nil {
				return err
			}
			list, err := c.nodes(cmd.Context())
			if err != nil {
				return err
			}
			nodes := make([]routes.Node, len(list))
			for i := range list {
				nodes[i] = routes.NodeOf(&list[i])
			}
			routes, faults := routes.Export(podNetworks(nodes), nodes)
			for _, f := range faults {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", f)
			}
			return write(cmd.OutOrStdout(), routes)
		},
	}
	c.bind(cmd.Flags())
	cmd.Flags().StringVarP(&format, "output", "o", format, "ip, bird, frr or json")
	return cmd
}

// podNetworks returns the pod networks of all nodes. The cluster's own network is not in the API.
func podNetworks(nodes []routes.Node) []netip.Prefix {
	var out []netip.Prefix
	for _, n := range nodes {
		for _, p := range []netip.Prefix{n.Pods, n.Pods6} {
			if p.IsValid() && !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out
}

func ipRoutes(w io.Writer, routes []routes.Static) error {
	for _, r := range routes {
		family := ""
		if r.Pods.Addr().Is6() {
			family = "-6 "
		}
		if _, err := fmt.Fprintf(w, "ip %sroute replace %s via %s\n", family, r.Pods, r.Via); err != nil {
			return err
		}
	}
	return nil
}

func birdRoutes(w io.Writer, routes []routes.Static) error {
	for _, family := range []struct {
		name string
		six  bool
	}{{"ipv4", false}, {"ipv6", true}} {
		var lines strings.Builder
		for _, r := range routes {
			if r.Pods.Addr().Is6() == family.six {
				fmt.Fprintf(&lines, "\troute %s via %s; # %s\n", r.Pods, r.Via, r.Node)
			}
		}
		if lines.Len() == 0 {
			continue
		}
		if _, err := fmt.Fprintf(w, "protocol static balsa_pods_%s {\n\t%s;\n%s}\n", family.name, family.name, lines.String()); err != nil {
			return err
		}
	}
	return nil
}

func frrRoutes(w io.Writer, routes []routes.Static) error {
	for _, r := range routes {
		family := "ip"
		if r.Pods.Addr().Is6() {
			family = "ipv6"
		}
		if _, err := fmt.Fprintf(w, "! %s\n%s route %s %s\n", r.Node, family, r.Pods, r.Via); err != nil {
			return err
		}
	}
	return nil
}

func jsonRoutes(w io.Writer, routes []routes.Static) error {
	type row struct {
		Node string       `json:"node"`
		Pods netip.Prefix `json:"pods"`
		Via  netip.Addr   `json:"via"`
	}
	rows := make([]row, len(routes))
	for i, r := range routes {
		rows[i] = row(r)
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(rows)
}
