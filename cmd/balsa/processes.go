package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
)

// processOf is a server or an agent of the cluster.
type processOf struct {
	name    string
	address string // of a server's API; empty for an agent, which is asked through the API
}

// String says which process it is, for people.
func (p processOf) String() string {
	if p.address != "" {
		return "server " + p.name
	}
	return "node " + p.name
}

// processes finds the servers and agents that flags name, and asks them.
type processes struct {
	*apiClient
	servers, nodes []string
	all            bool
}

func newProcesses() *processes { return &processes{apiClient: newAPIClient()} }

func (p *processes) bind(f *pflag.FlagSet) {
	p.apiClient.bind(f)
	f.StringSliceVar(&p.servers, "server", nil, "names of servers (default: the one that answers)")
	f.StringSliceVar(&p.nodes, "node", nil, "names of nodes, whose agent or server is asked")
	f.BoolVar(&p.all, "all", false, "every server and every agent")
}

// find returns the processes that the flags name.
func (p *processes) find(ctx context.Context) ([]processOf, error) {
	if p.all && len(p.servers)+len(p.nodes) > 0 {
		return nil, errors.New("give --all, or --server and --node")
	}
	if err := p.connect(ctx); err != nil {
		return nil, err
	}
	var out []processOf
	for _, n := range p.nodes {
		out = append(out, processOf{name: n})
	}
	if !p.all && len(p.servers) == 0 {
		if len(out) == 0 {
			u, err := url.Parse(p.rest.Host)
			if err != nil {
				return nil, err
			}
			out = append(out, processOf{name: u.Host, address: u.Host})
		}
		return out, nil
	}
	members, err := p.members(ctx)
	if err != nil {
		return nil, err
	}
	missing := slices.Clone(p.servers)
	for _, m := range members {
		server := m.Role == clusterpb.Role_ROLE_SERVER
		switch {
		case server && (p.all || slices.Contains(p.servers, m.Name)):
			out = append(out, processOf{name: m.Name, address: m.Address})
			missing = slices.DeleteFunc(missing, func(name string) bool { return name == m.Name })
		case p.all && !server:
			out = append(out, processOf{name: m.Name})
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("there is no server %s: `balsa members` lists them", strings.Join(missing, ", "))
	}
	return out, nil
}

// members lists the servers and agents.
func (p *processes) members(ctx context.Context) (list []*clusterpb.Member, err error) {
	cluster := &clusterClient{paths: p.paths, kubeconfig: p.kubeconfig}
	err = cluster.call(ctx, func(ctx context.Context, cc clusterpb.ClusterClient) error {
		answer, err := cc.Members(ctx, &clusterpb.MembersRequest{})
		list = answer.GetMembers()
		return err
	})
	return list, err
}

// ask sends a request to a process and copies the answer to w.
func (p *processes) ask(ctx context.Context, of processOf, r *http.Request, w io.Writer) error {
	own := rest.CopyConfig(p.rest)
	r = r.Clone(ctx)
	if of.address != "" {
		own.Host = "https://" + of.address
	} else {
		r.URL.Path = "/api/v1/nodes/" + of.name + "/proxy" + r.URL.Path
	}
	host, err := url.Parse(own.Host)
	if err != nil {
		return err
	}
	r.URL.Scheme, r.URL.Host = host.Scheme, host.Host
	client, err := rest.HTTPClientFor(own)
	if err != nil {
		return err
	}
	client.Timeout = 0
	answer, err := client.Do(r)
	if err != nil {
		return fmt.Errorf("%s: %w", of, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
		return fmt.Errorf("%s: %s: %s", of, answer.Status, strings.TrimSpace(string(text)))
	}
	if _, err = io.Copy(w, answer.Body); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: %w", of, err)
	}
	return nil
}

// get is a GET request for a path.
func get(path string, query url.Values) *http.Request {
	return &http.Request{Method: http.MethodGet, Header: http.Header{}, URL: &url.URL{Path: path, RawQuery: query.Encode()}}
}
