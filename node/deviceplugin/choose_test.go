package deviceplugin

import (
	"fmt"
	"testing"

	"github.com/balsahq/balsa/node/topology"
)

func onNodes(nodes map[string]topology.Nodes) map[string]device {
	out := map[string]device{}
	for id, n := range nodes {
		out[id] = device{healthy: true, nodes: n}
	}
	return out
}

func TestDevicesNearTheAffinityComeFirst(t *testing.T) {
	zero, one := topology.NodesOf(0), topology.NodesOf(1)
	for name, c := range map[string]struct {
		devices  map[string]topology.Nodes
		affinity topology.Nodes
		want     string
	}{
		"no affinity": {map[string]topology.Nodes{"a": zero, "b": one}, 0, "[] [] [a b]"},
		"no topology": {map[string]topology.Nodes{"a": 0, "b": 0}, zero, "[] [] [a b]"},
		"one node":    {map[string]topology.Nodes{"a": zero, "b": one, "c": 0, "d": one}, one, "[b d] [a] [c]"},
		"both nodes, small group first": {map[string]topology.Nodes{"a": zero, "b": zero, "c": one}, zero | one,
			"[c a b] [] []"},
		"device of two nodes": {map[string]topology.Nodes{"a": zero | one, "b": zero}, one, "[a] [b] []"},
	} {
		t.Run(name, func(t *testing.T) {
			aligned, others, anywhere := near(onNodes(c.devices), c.affinity)
			if got := fmt.Sprint(aligned, others, anywhere); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestHintsNameTheNodesThatSuffice(t *testing.T) {
	zero, one := topology.NodesOf(0), topology.NodesOf(1)
	all := onNodes(map[string]topology.Nodes{"a": zero, "b": zero, "c": one, "d": one})
	set := func(ids ...string) map[string]bool {
		m := map[string]bool{}
		for _, id := range ids {
			m[id] = true
		}
		return m
	}
	for name, c := range map[string]struct {
		available, reuse map[string]bool
		want             int
		hints            string
	}{
		"one free on each":       {set("a", "c"), nil, 1, "[{1 true} {2 true} {3 false}]"},
		"two on one node":        {set("a", "b", "c"), nil, 2, "[{1 true} {3 false}]"},
		"two would fit one node": {set("a", "c"), nil, 2, "[{3 false}]"},
		"three need both":        {set("a", "b", "c", "d"), nil, 3, "[{3 true}]"},
		"what is reused counts":  {set("d"), set("c"), 2, "[{2 true} {3 false}]"},
		"none":                   {nil, nil, 1, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := fmt.Sprint(hints(all, c.available, c.reuse, c.want, zero|one)); got != c.hints {
				t.Errorf("got %s, want %s", got, c.hints)
			}
		})
	}
}
