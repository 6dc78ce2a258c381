package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// sysfs writes files as the kernel has them.
func sysfs(t *testing.T, files map[string]string) string {
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func cpu(files map[string]string, id, socket int, siblings string) {
	at := fmt.Sprintf("cpu/cpu%d/topology/", id)
	files[at+"thread_siblings_list"], files[at+"physical_package_id"] = siblings, fmt.Sprint(socket)
}

func TestMachines(t *testing.T) {
	twoSockets := map[string]string{"cpu/online": "0-7", "node/online": "0-1", "node/node0/cpulist": "0-1,4-5", "node/node1/cpulist": "2-3,6-7"}
	for id := range 4 {
		cpu(twoSockets, id, id/2, fmt.Sprintf("%d,%d", id, id+4))
		cpu(twoSockets, id+4, id/2, fmt.Sprintf("%d,%d", id, id+4))
	}
	oneOff := map[string]string{"cpu/online": "1,3"}
	cpu(oneOff, 1, 0, "0-1")
	cpu(oneOff, 3, -1, "2-3")
	for name, c := range map[string]struct {
		files map[string]string
		cpus  string
		nodes string
		smt   int
	}{
		"two sockets with hyper-threading": {twoSockets,
			"[{0 0 0 0} {1 1 0 0} {2 2 1 1} {3 3 1 1} {4 0 0 0} {5 1 0 0} {6 2 1 1} {7 3 1 1}]", "[0 1]", 2},
		"CPUs offline, no NUMA": {oneOff, "[{1 1 0 0} {3 3 0 0}]", "[0]", 1},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := Read(sysfs(t, c.files))
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(m.CPUs); got != c.cpus {
				t.Errorf("CPUs %s, want %s", got, c.cpus)
			}
			if got := fmt.Sprint(m.Nodes().IDs()); got != c.nodes || m.ThreadsPerCore() != c.smt {
				t.Errorf("nodes %s, threads %d; want %s, %d", got, m.ThreadsPerCore(), c.nodes, c.smt)
			}
		})
	}
	if _, err := Read(t.TempDir()); err == nil {
		t.Error("a directory without CPUs is read")
	}
}

func TestThisMachine(t *testing.T) {
	m, err := Read(Dir)
	if err != nil || m.All().IsEmpty() || m.Nodes() == 0 {
		t.Fatalf("%+v %v", m, err)
	}
}
