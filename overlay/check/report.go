package check

import (
	"net/netip"
	"slices"
)

// Report is the result of a check; Diagnose explains it.
type Report struct {
	Nodes []NodeReport `json:"nodes"`
	// Faults are failures of the check itself: targets that could not be tried at all.
	Faults []string `json:"faults,omitempty"`
}

// NodeReport is the part of one node.
type NodeReport struct {
	Target NodeTarget `json:"node"`
	// Fault says why the other fields are empty.
	Fault   string   `json:"fault,omitempty"`
	Opened  *Opened  `json:"opened,omitempty"`
	Results []Result `json:"results,omitempty"`
	// Heard are the nodes from whose probes a datagram arrived at this node's probe.
	Heard []string `json:"heard,omitempty"`
}

// NodeTarget is a node to check.
type NodeTarget struct {
	Name string `json:"name"`
	// Address is where the node's own API listens.
	Address netip.AddrPort `json:"address"`
	PodCIDR string         `json:"podCIDR,omitempty"`
}

// matrix indexes a report's results by pair of nodes and kind.
type matrix struct {
	nodes  map[string]*NodeReport
	byPair map[pair]map[Kind]*Result
}

type pair struct{ from, to string }

func newMatrix(r *Report) *matrix {
	m := &matrix{nodes: make(map[string]*NodeReport), byPair: make(map[pair]map[Kind]*Result)}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		m.nodes[n.Target.Name] = n
		for j := range n.Results {
			at := pair{n.Target.Name, n.Results[j].To}
			if m.byPair[at] == nil {
				m.byPair[at] = make(map[Kind]*Result)
			}
			m.byPair[at][n.Results[j].Kind] = &n.Results[j]
		}
	}
	return m
}

// bad returns the result of a failed try; nil when the try succeeded or there was none.
func (m *matrix) bad(p pair, k Kind) *Result {
	if r := m.byPair[p][k]; r != nil && !r.OK {
		return r
	}
	return nil
}

func (m *matrix) good(p pair, k Kind) bool {
	r := m.byPair[p][k]
	return r != nil && r.OK
}

// heard tells whether a datagram of one probe arrived at the other.
func (m *matrix) heard(p pair) bool {
	to := m.nodes[p.to]
	return to != nil && slices.Contains(to.Heard, p.from)
}

func (m *matrix) host(node string) string {
	if n := m.nodes[node]; n != nil {
		return n.Target.Address.Addr().String()
	}
	return node
}

// pairs returns the pairs of nodes that were tried, in order.
func (m *matrix) pairs() []pair {
	var out []pair
	for p := range m.byPair {
		if p.to != "" {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(x, y pair) int { return slices.Compare([]string{x.from, x.to}, []string{y.from, y.to}) })
	return out
}
