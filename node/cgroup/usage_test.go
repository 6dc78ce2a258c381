package cgroup

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestUsageIsReadFromBothVersions(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"version 1": {
			"cpu/cgroup.procs": "", "memory/cgroup.procs": "", "pids/cgroup.procs": "",
			"memory/p/memory.usage_in_bytes": "5000\n", "memory/p/memory.limit_in_bytes": "9000\n",
			"memory/p/memory.stat":               "inactive_file 1\ntotal_inactive_file 2000\n",
			"pids/p/burstable/podu/pids.current": "17\n",
		},
		"version 2": {
			"cgroup.controllers": "memory pids\n", "p/memory.current": "5000\n", "p/memory.max": "9000\n",
			"p/memory.stat": "active_file 1\ninactive_file 2000\n", "p/burstable/podu/pids.current": "17\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write := func(file, text string) {
				t.Helper()
				if err := os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for file, text := range files {
				write(file, text)
			}
			m, err := New(Config{Root: root, Parent: "/p"})
			if err != nil {
				t.Fatal(err)
			}
			if got, err := m.AllPods(); err != nil || got != (Memory{WorkingSet: 3000, Limit: 9000}) {
				t.Errorf("%+v %v", got, err)
			}
			if n, err := m.Processes("u", v1.PodQOSBurstable); err != nil || n != 17 {
				t.Errorf("%d processes, %v", n, err)
			}
			if _, err := m.Processes("v", v1.PodQOSBurstable); err == nil {
				t.Error("a pod without a group has processes")
			}
			if m.Unified() {
				write("p/memory.max", "max\n")
			} else {
				write("memory/p/memory.limit_in_bytes", "9223372036854771712\n")
			}
			if got, err := m.AllPods(); err != nil || got.Limit != -1 {
				t.Errorf("without a limit: %+v %v", got, err)
			}
		})
	}
}
