// Package machine reads from sysfs which CPUs the machine has, how they are grouped, and which memory is near them.
package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/balsahq/balsa/node/topology"
)

// Dir is where the kernel describes the machine.
const Dir = "/sys/devices/system"

// CPU is one logical CPU that is online.
type CPU struct {
	ID     int
	Core   int // the lowest CPU of the same core
	Socket int
	Node   int // NUMA node
}

// Topology is what Read finds.
type Topology struct {
	CPUs []CPU // by ID
}

// Read reads the description below dir. A machine without NUMA has the node 0.
func Read(dir string) (*Topology, error) {
	online, err := readSet(filepath.Join(dir, "cpu", "online"))
	if err != nil {
		return nil, fmt.Errorf("machine: %w", err)
	}
	nodeOf, err := nodesOfCPUs(filepath.Join(dir, "node"))
	if err != nil {
		return nil, fmt.Errorf("machine: %w", err)
	}
	t := &Topology{}
	for _, id := range online.List() {
		at := filepath.Join(dir, "cpu", fmt.Sprintf("cpu%d", id), "topology")
		siblings, err := readSet(filepath.Join(at, "thread_siblings_list"))
		if err != nil {
			return nil, fmt.Errorf("machine: %w", err)
		}
		socket, err := readInt(filepath.Join(at, "physical_package_id"))
		if err != nil {
			return nil, fmt.Errorf("machine: %w", err)
		}
		core := id
		if list := siblings.Intersection(online).List(); len(list) > 0 {
			core = list[0]
		}
		t.CPUs = append(t.CPUs, CPU{ID: id, Core: core, Socket: max(socket, 0), Node: nodeOf[id]})
	}
	return t, nil
}

// nodesOfCPUs returns the NUMA node of each CPU.
func nodesOfCPUs(dir string) (map[int]int, error) {
	nodeOf := map[int]int{}
	online, err := readSet(filepath.Join(dir, "online"))
	if errors.Is(err, fs.ErrNotExist) {
		return nodeOf, nil
	}
	if err != nil {
		return nil, err
	}
	for _, node := range online.List() {
		cpus, err := readSet(filepath.Join(dir, fmt.Sprintf("node%d", node), "cpulist"))
		if err != nil {
			return nil, err
		}
		for _, id := range cpus.List() {
			nodeOf[id] = node
		}
	}
	return nodeOf, nil
}

func readSet(path string) (cpuset.CPUSet, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return cpuset.New(), err
	}
	set, err := cpuset.Parse(strings.TrimSpace(string(b)))
	if err != nil {
		return set, fmt.Errorf("%s: %w", path, err)
	}
	return set, nil
}

func readInt(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// All returns the IDs of the CPUs.
func (t *Topology) All() cpuset.CPUSet {
	return t.Where(func(CPU) bool { return true })
}

// Where returns the IDs of the CPUs for which is reports true.
func (t *Topology) Where(is func(CPU) bool) cpuset.CPUSet {
	var ids []int
	for _, c := range t.CPUs {
		if is(c) {
			ids = append(ids, c.ID)
		}
	}
	return cpuset.New(ids...)
}

// In returns the IDs of the CPUs of these NUMA nodes.
func (t *Topology) In(nodes topology.Nodes) cpuset.CPUSet {
	return t.Where(func(c CPU) bool { return nodes.Has(c.Node) })
}

// Nodes returns the NUMA nodes that have CPUs.
func (t *Topology) Nodes() (n topology.Nodes) {
	for _, c := range t.CPUs {
		n |= topology.NodesOf(c.Node)
	}
	return n
}

// ThreadsPerCore returns how many CPUs a core has at most.
func (t *Topology) ThreadsPerCore() (most int) {
	count := map[int]int{}
	for _, c := range t.CPUs {
		count[c.Core]++
		most = max(most, count[c.Core])
	}
	return most
}
