package cgroup

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Memory is what a group uses, in bytes.
type Memory struct {
	// WorkingSet is the usage without the file pages that are easily given back.
	WorkingSet int64
	// Limit is -1 when there is none.
	Limit int64
}

// AllPods returns what the pods together use of their limit.
func (m *Manager) AllPods() (Memory, error) {
	dir, usage, limit, inactive := m.MemoryDir(), "memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"
	if m.unified {
		usage, limit, inactive = "memory.current", "memory.max", "inactive_file"
	}
	used, err := readNumber(filepath.Join(dir, usage))
	if err != nil {
		return Memory{}, err
	}
	most, err := readNumber(filepath.Join(dir, limit))
	if err != nil {
		return Memory{}, err
	}
	if most >= unlimitedV1 {
		most = -1
	}
	stat, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
	if err != nil {
		return Memory{}, fmt.Errorf("cgroup: %w", err)
	}
	return Memory{WorkingSet: max(0, used-keyed(stat, inactive)), Limit: most}, nil
}

// Processes returns how many processes and threads a pod has.
func (m *Manager) Processes(uid types.UID, qos v1.PodQOSClass) (int64, error) {
	dir := m.dir("pids", m.Path(uid, qos))
	if m.unified {
		dir = filepath.Join(m.root, m.Path(uid, qos))
	}
	return readNumber(filepath.Join(dir, "pids.current"))
}

// MemoryDir is the directory of the group of all pods that has its memory figures.
func (m *Manager) MemoryDir() string {
	if m.unified {
		return filepath.Join(m.root, m.parent)
	}
	return m.dir("memory", m.parent)
}

// MachineDir is the directory of the root group of memory.
func (m *Manager) MachineDir() string {
	if m.unified {
		return m.root
	}
	return m.dir("memory", "")
}

// keyed returns the value of a line "key value"; 0 when there is none.
func keyed(data []byte, key string) int64 {
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		if k, v, ok := strings.Cut(lines.Text(), " "); ok && k == key {
			n, _ := strconv.ParseInt(v, 10, 64)
			return n
		}
	}
	return 0
}
