package cpumanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/atomicfile"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
)

// state is the content of the file.
type state struct {
	PolicyName    Policy                          `json:"policyName"`
	DefaultCPUSet string                          `json:"defaultCpuSet"`
	Entries       map[types.UID]map[string]string `json:"entries,omitempty"`
}

// save writes the file; the lock is held.
func (m *Manager) save() error {
	s := state{PolicyName: m.cfg.Policy, DefaultCPUSet: m.pool().String(), Entries: map[types.UID]map[string]string{}}
	for uid, containers := range m.assigned {
		s.Entries[uid] = map[string]string{}
		for name, set := range containers {
			s.Entries[uid][name] = set.String()
		}
	}
	content, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(m.cfg.StateFile), 0o750); err != nil {
		return err
	}
	f, err := atomicfile.New(m.cfg.StateFile, 0o600)
	if err != nil {
		return fmt.Errorf("assignments of CPUs: %w", err)
	}
	if _, err := f.Write(content); err != nil {
		return fmt.Errorf("assignments of CPUs: %w", errors.Join(err, f.Cancel()))
	}
	return f.Close()
}

// load reads the file and checks it against the configuration.
func (m *Manager) load() error {
	content, err := os.ReadFile(m.cfg.StateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var s state
	if err := json.Unmarshal(content, &s); err != nil {
		return m.drainFirst(err)
	}
	if len(s.Entries) == 0 {
		return nil // nothing that another policy or machine could break
	}
	if s.PolicyName != m.cfg.Policy {
		return m.drainFirst(fmt.Errorf("configured policy %q differs from state checkpoint policy %q", m.cfg.Policy, s.PolicyName))
	}
	taken := cpuset.New()
	for uid, containers := range s.Entries {
		m.assigned[uid] = map[string]cpuset.CPUSet{}
		own := cpuset.New() // containers of one pod may have CPUs one after the other
		for name, text := range containers {
			set, err := cpuset.Parse(text)
			if err != nil {
				return m.drainFirst(err)
			}
			m.assigned[uid][name] = set
			own = own.Union(set)
		}
		if twice := taken.Intersection(own); !twice.IsEmpty() {
			return m.drainFirst(fmt.Errorf("two pods have the CPUs %s", twice))
		}
		taken = taken.Union(own)
	}
	if gone := taken.Difference(m.Allocatable()); !gone.IsEmpty() {
		return m.drainFirst(fmt.Errorf("containers have the CPUs %s, which are reserved or not online", gone))
	}
	return nil
}

func (m *Manager) drainFirst(err error) error {
	return fmt.Errorf("could not restore state from checkpoint: %w; drain this node and delete %s before the next start", err, m.cfg.StateFile)
}
