package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Limits are the resources of one group. Zero leaves a resource as it is; a
// negative quota or limit takes the limit away.
type Limits struct {
	CPUShares uint64 // as cgroup v1 counts them: 1024 a CPU
	CPUQuota  int64  // microseconds a period
	CPUPeriod uint64 // microseconds
	Memory    int64  // bytes
	PIDs      int64
}

// Config says where the groups are.
type Config struct {
	// Root is where the cgroup file systems are mounted; "" means /sys/fs/cgroup.
	Root string
	// Parent is the group of all pods, such as "/kubepods".
	Parent string
}

// Manager makes and removes groups.
type Manager struct {
	root, parent string
	unified      bool
	hierarchies  []string // directories that carry a hierarchy
}

// New finds out how the machine's cgroups are mounted. It changes nothing.
func New(cfg Config) (*Manager, error) {
	if cfg.Root == "" {
		cfg.Root = "/sys/fs/cgroup"
	}
	if !strings.HasPrefix(cfg.Parent, "/") || cfg.Parent == "/" {
		return nil, fmt.Errorf("cgroup: parent %q is not an absolute path below the root", cfg.Parent)
	}
	m := &Manager{root: cfg.Root, parent: filepath.Clean(cfg.Parent)}
	if _, err := os.Stat(filepath.Join(cfg.Root, "cgroup.controllers")); err == nil {
		m.unified, m.hierarchies = true, []string{cfg.Root}
		return m, nil
	}
	entries, err := os.ReadDir(cfg.Root)
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(cfg.Root, e.Name())
		if e.IsDir() && e.Name() != "unified" && exists(filepath.Join(dir, "cgroup.procs")) {
			m.hierarchies = append(m.hierarchies, dir)
		}
	}
	if !exists(filepath.Join(cfg.Root, "cpu")) || !exists(filepath.Join(cfg.Root, "memory")) {
		return nil, fmt.Errorf("cgroup: neither version 2 nor the cpu and memory controllers of version 1 at %s", cfg.Root)
	}
	return m, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Unified reports whether version 2 is in use.
func (m *Manager) Unified() bool { return m.unified }

// Path is the group of one pod, as CRI's cgroup_parent takes it.
func (m *Manager) Path(uid types.UID, qos v1.PodQOSClass) string {
	return filepath.Join(m.qosPath(qos), "pod"+string(uid))
}

func (m *Manager) qosPath(qos v1.PodQOSClass) string {
	switch qos {
	case v1.PodQOSBurstable:
		return m.parent + "/burstable"
	case v1.PodQOSBestEffort:
		return m.parent + "/besteffort"
	}
	return m.parent
}

// Init makes the parent with the limits of all pods, and the groups of the two
// lower qualities of service.
func (m *Manager) Init(all Limits) error {
	return errors.Join(
		m.set(m.parent, all),
		m.set(m.qosPath(v1.PodQOSBurstable), Limits{}),
		m.set(m.qosPath(v1.PodQOSBestEffort), Limits{CPUShares: 2}),
	)
}

// SetBurstable gives the burstable pods together their CPU shares.
func (m *Manager) SetBurstable(shares uint64) error {
	return m.set(m.qosPath(v1.PodQOSBurstable), Limits{CPUShares: max(shares, 2)})
}

// Apply makes the group of a pod, or changes its limits, and returns its path.
func (m *Manager) Apply(uid types.UID, qos v1.PodQOSClass, l Limits) (string, error) {
	path := m.Path(uid, qos)
	return path, m.set(path, l)
}

// Read returns the CPU quota and the memory limit that a pod's group has; -1 means none.
func (m *Manager) Read(uid types.UID, qos v1.PodQOSClass) (Limits, error) {
	path := m.Path(uid, qos)
	if m.unified {
		quota, err := readNumber(filepath.Join(m.root, path, "cpu.max"))
		if err != nil {
			return Limits{}, err
		}
		memory, err := readNumber(filepath.Join(m.root, path, "memory.max"))
		return Limits{CPUQuota: quota, Memory: memory}, err
	}
	quota, err := readNumber(filepath.Join(m.dir("cpu", path), "cpu.cfs_quota_us"))
	if err != nil {
		return Limits{}, err
	}
	memory, err := readNumber(filepath.Join(m.dir("memory", path), "memory.limit_in_bytes"))
	if memory >= unlimitedV1 {
		memory = -1
	}
	return Limits{CPUQuota: quota, Memory: memory}, err
}

// unlimitedV1 is more than any limit that version 1 shows for memory, besides the one for none.
const unlimitedV1 = 1 << 62

// MemoryUsage returns the bytes that a pod uses.
func (m *Manager) MemoryUsage(uid types.UID, qos v1.PodQOSClass) (int64, error) {
	if m.unified {
		return readNumber(filepath.Join(m.root, m.Path(uid, qos), "memory.current"))
	}
	return readNumber(filepath.Join(m.dir("memory", m.Path(uid, qos)), "memory.usage_in_bytes"))
}

// readNumber returns the first word of a file as a number, -1 for "max".
func readNumber(file string) (int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("cgroup: %w", err)
	}
	word, _, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
	if word == "max" {
		return -1, nil
	}
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("cgroup: %s: %w", file, err)
	}
	return n, nil
}

func (m *Manager) set(path string, l Limits) error {
	if m.unified {
		return m.setUnified(path, l)
	}
	for _, c := range []string{"cpu", "memory", "pids"} {
		if err := os.MkdirAll(m.dir(c, path), 0o755); err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
	}
	w := writer{}
	if l.CPUShares > 0 {
		w.write(m.dir("cpu", path), "cpu.shares", strconv.FormatUint(l.CPUShares, 10))
	}
	if l.CPUPeriod > 0 {
		w.write(m.dir("cpu", path), "cpu.cfs_period_us", strconv.FormatUint(l.CPUPeriod, 10))
	}
	if l.CPUQuota != 0 {
		w.write(m.dir("cpu", path), "cpu.cfs_quota_us", strconv.FormatInt(l.CPUQuota, 10))
	}
	if l.Memory != 0 {
		w.write(m.dir("memory", path), "memory.limit_in_bytes", strconv.FormatInt(l.Memory, 10))
	}
	if l.PIDs != 0 {
		w.write(m.dir("pids", path), "pids.max", orMax(l.PIDs))
	}
	return w.err
}

func (m *Manager) dir(controller, path string) string {
	return filepath.Join(m.root, controller, path)
}

func (m *Manager) setUnified(path string, l Limits) error {
	if err := m.delegate(path); err != nil {
		return err
	}
	dir := filepath.Join(m.root, path)
	w := writer{}
	if l.CPUShares > 0 {
		w.write(dir, "cpu.weight", strconv.FormatUint(weight(l.CPUShares), 10))
	}
	if l.CPUQuota != 0 {
		w.write(dir, "cpu.max", orMax(l.CPUQuota)+" "+strconv.FormatUint(max(l.CPUPeriod, 1000), 10))
	}
	if l.Memory != 0 {
		w.write(dir, "memory.max", orMax(l.Memory))
	}
	if l.PIDs != 0 {
		w.write(dir, "pids.max", orMax(l.PIDs))
	}
	return w.err
}

// delegate makes path and hands the controllers down to it.
func (m *Manager) delegate(path string) error {
	at := m.root
	for _, part := range strings.Split(strings.Trim(path, "/"), "/") {
		available, err := os.ReadFile(filepath.Join(at, "cgroup.controllers"))
		if err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
		for _, c := range strings.Fields(string(available)) {
			// One at a time: a controller that cannot be enabled must not prevent the rest.
			_ = os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), []byte("+"+c), 0o644)
		}
		at = filepath.Join(at, part)
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("cgroup: %w", err)
		}
	}
	return nil
}

// weight is cgroup v2's cpu.weight (1 to 10000) for v1 shares (2 to 262144).
func weight(shares uint64) uint64 {
	shares = min(max(shares, 2), 262144)
	return 1 + (shares-2)*9999/262142
}

func orMax(n int64) string {
	if n < 0 {
		return "max"
	}
	return strconv.FormatInt(n, 10)
}

// writer keeps the first error of a row of writes.
type writer struct{ err error }

func (w *writer) write(dir, file, value string) {
	if w.err != nil {
		return
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644); err != nil {
		w.err = fmt.Errorf("cgroup: write %s: %w", value, err)
	}
}

// Remove takes the groups of a pod away, in whichever quality of service it
// was, and kills what is left inside. It is idempotent.
func (m *Manager) Remove(uid types.UID) error {
	var errs []error
	for _, qos := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		for _, h := range m.hierarchies {
			errs = append(errs, removeTree(filepath.Join(h, m.Path(uid, qos))))
		}
	}
	return errors.Join(errs...)
}

// Destroy takes away the parent of all pods and everything below it.
func (m *Manager) Destroy() error {
	var errs []error
	for _, h := range m.hierarchies {
		errs = append(errs, removeTree(filepath.Join(h, m.parent)))
	}
	return errors.Join(errs...)
}

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	err = os.Remove(dir)
	if errors.Is(err, syscall.EBUSY) {
		killAll(dir)
		err = os.Remove(dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cgroup: %w", err)
	}
	return nil
}

func killAll(dir string) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return
	}
	for _, f := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// Pods lists the pods that have a group.
func (m *Manager) Pods() []types.UID {
	seen := map[types.UID]bool{}
	var out []types.UID
	for _, qos := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		for _, h := range m.hierarchies {
			entries, _ := os.ReadDir(filepath.Join(h, m.qosPath(qos)))
			for _, e := range entries {
				uid, ok := strings.CutPrefix(e.Name(), "pod")
				if ok && e.IsDir() && !seen[types.UID(uid)] {
					seen[types.UID(uid)] = true
					out = append(out, types.UID(uid))
				}
			}
		}
	}
	return out
}
