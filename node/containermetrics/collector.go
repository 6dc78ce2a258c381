package containermetrics

import (
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Pod is one pod of the node, as far as its metrics go.
type Pod struct {
	Namespace, Name string
	Cgroup          string // below the root of the control groups
	SandboxID       string // "" while it has none
	HostNetwork     bool   // its interfaces are the host's and not counted for it
	Containers      []Container
}

// Container is a container that runs.
type Container struct {
	Name, ID, Image string
	Started         time.Time
}

// Config is what a Collector needs.
type Config struct {
	// CgroupRoot is where control groups are mounted; "" means /sys/fs/cgroup.
	CgroupRoot string
	// Pods returns the pods of this node.
	Pods func() []Pod
	// Memory is the machine's memory in bytes.
	Memory int64
}

// Collector is a prometheus.Collector that reads the control groups when it is scraped.
type Collector struct {
	cfg    Config
	groups groups
	proc   string // /proc, another directory in tests
	sys    string // /sys, likewise
}

// New returns a Collector for cfg.
func New(cfg Config) *Collector {
	if cfg.CgroupRoot == "" {
		cfg.CgroupRoot = "/sys/fs/cgroup"
	}
	return &Collector{cfg: cfg, groups: newGroups(cfg.CgroupRoot), proc: "/proc", sys: "/sys"}
}

// Labels of cAdvisor in a kubelet. id is the control group, name the container's ID.
var (
	labels       = []string{"container", "id", "image", "name", "namespace", "pod"}
	linkLabels   = append(append([]string{}, labels...), "interface")
	deviceLabels = append(append([]string{}, labels...), "device")
	faultLabels  = append(append([]string{}, labels...), "failure_type", "scope")
)

// row is a metric and the value that a sample has of it.
type row[T any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(T) float64
}

func rowOf[T any](name, help string, kind prometheus.ValueType, l []string, value func(T) float64) row[T] {
	return row[T]{desc: prometheus.NewDesc(name, help, l, nil), kind: kind, value: value}
}

func counter(name, help string, value func(*Sample) float64) row[*Sample] {
	return rowOf(name, help, prometheus.CounterValue, labels, value)
}

func gauge(name, help string, value func(*Sample) float64) row[*Sample] {
	return rowOf(name, help, prometheus.GaugeValue, labels, value)
}

var sampleRows = []row[*Sample]{
	counter("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", func(s *Sample) float64 { return s.CPU.Seconds() }),
	counter("container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds.", func(s *Sample) float64 { return s.User.Seconds() }),
	counter("container_cpu_system_seconds_total", "Cumulative system cpu time consumed in seconds.", func(s *Sample) float64 { return s.System.Seconds() }),
	gauge("container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed.", func(s *Sample) float64 { return float64(s.Memory) }),
	gauge("container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes.", func(s *Sample) float64 { return float64(s.MaxMemory) }),
	gauge("container_memory_working_set_bytes", "Current working set in bytes.", func(s *Sample) float64 { return float64(s.WorkingSet) }),
	gauge("container_memory_rss", "Size of RSS in bytes.", func(s *Sample) float64 { return float64(s.RSS) }),
	gauge("container_memory_cache", "Number of bytes of page cache memory.", func(s *Sample) float64 { return float64(s.Cache) }),
	gauge("container_memory_mapped_file", "Size of memory mapped files in bytes.", func(s *Sample) float64 { return float64(s.Mapped) }),
	gauge("container_memory_swap", "Container swap usage in bytes.", func(s *Sample) float64 { return float64(s.Swap) }),
	counter("container_memory_failcnt", "Number of memory usage hits limits.", func(s *Sample) float64 { return float64(s.Failures) }),
	counter("container_oom_events_total", "Count of out of memory events observed for the container.", func(s *Sample) float64 { return float64(s.OOMKills) }),
	gauge("container_threads", "Number of threads running inside the container.", func(s *Sample) float64 { return float64(s.Threads) }),
	gauge("container_processes", "Number of processes running inside the container.", func(s *Sample) float64 { return float64(s.Processes) }),
	gauge("container_spec_cpu_shares", "CPU share of the container.", func(s *Sample) float64 { return float64(s.Shares) }),
	gauge("container_spec_cpu_period", "CPU period of the container.", func(s *Sample) float64 { return float64(s.Period) }),
	gauge("container_spec_memory_limit_bytes", "Memory limit for the container.", func(s *Sample) float64 { return float64(s.MemoryLimit) }),
}

// quotaRows are shown of groups with a limit of processor time, as by cAdvisor.
var quotaRows = []row[*Sample]{
	gauge("container_spec_cpu_quota", "CPU quota of the container.", func(s *Sample) float64 { return float64(s.Quota) }),
	counter("container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.", func(s *Sample) float64 { return float64(s.Periods) }),
	counter("container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.", func(s *Sample) float64 { return float64(s.ThrottledPeriods) }),
	counter("container_cpu_cfs_throttled_seconds_total", "Total time duration the container has been throttled.", func(s *Sample) float64 { return s.ThrottledTime.Seconds() }),
}

var faultRows = map[string]row[*Sample]{
	"pgfault":    rowOf("container_memory_failures_total", "Cumulative count of memory allocation failures.", prometheus.CounterValue, faultLabels, func(s *Sample) float64 { return float64(s.Faults) }),
	"pgmajfault": rowOf("container_memory_failures_total", "Cumulative count of memory allocation failures.", prometheus.CounterValue, faultLabels, func(s *Sample) float64 { return float64(s.MajorFaults) }),
}

var deviceRows = []row[IO]{
	rowOf("container_fs_reads_total", "Cumulative count of reads completed.", prometheus.CounterValue, deviceLabels, func(io IO) float64 { return float64(io.Reads) }),
	rowOf("container_fs_writes_total", "Cumulative count of writes completed.", prometheus.CounterValue, deviceLabels, func(io IO) float64 { return float64(io.Writes) }),
	rowOf("container_fs_reads_bytes_total", "Cumulative count of bytes read.", prometheus.CounterValue, deviceLabels, func(io IO) float64 { return float64(io.ReadBytes) }),
	rowOf("container_fs_writes_bytes_total", "Cumulative count of bytes written.", prometheus.CounterValue, deviceLabels, func(io IO) float64 { return float64(io.WriteBytes) }),
}

var linkRows = []row[link]{
	rowOf("container_network_receive_bytes_total", "Cumulative count of bytes received.", prometheus.CounterValue, linkLabels, func(l link) float64 { return float64(l.rxBytes) }),
	rowOf("container_network_receive_packets_total", "Cumulative count of packets received.", prometheus.CounterValue, linkLabels, func(l link) float64 { return float64(l.rxPackets) }),
	rowOf("container_network_receive_errors_total", "Cumulative count of errors encountered while receiving.", prometheus.CounterValue, linkLabels, func(l link) float64 { return float64(l.rxErrors) }),
	rowOf("container_network_receive_packets_dropped_total", "Cumulative count of packets dropped while receiving.", prometheus.CounterValue, linkLabels, func(l link) float64 { return float64(l.rxDropped) }),
	rowOf("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted.", prometheus.CounterValue, linkLabels, func(l link) float64 { return float64(l.txBytes) }),
	rowOf("container_network_transmit_packets_total", "Cumulative count of packets transmitted.", prometheus.CounterValue, linkLabels, func(l link) float64 { return float64(l.txPackets) }),
	rowOf("container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting.", prometheus.CounterValue, linkLabels, func(l link) float64 { return float64(l.txErrors) }),
	rowOf("container_network_transmit_packets_dropped_total", "Cumulative count of packets dropped while transmitting.", prometheus.CounterValue, linkLabels, func(l link) float64 { return float64(l.txDropped) }),
}

var (
	startTime     = prometheus.NewDesc("container_start_time_seconds", "Start time of the container since unix epoch in seconds.", labels, nil)
	lastSeen      = prometheus.NewDesc("container_last_seen", "Last time a container was seen by the exporter.", labels, nil)
	machineCores  = prometheus.NewDesc("machine_cpu_cores", "Number of logical CPU cores.", nil, nil)
	machineMemory = prometheus.NewDesc("machine_memory_bytes", "Amount of memory installed on the machine.", nil, nil)
)

// Describe implements prometheus.Collector; describing nothing makes it an unchecked one.
func (c *Collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	now := float64(time.Now().Unix())
	gauge := func(d *prometheus.Desc, value float64, l ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, l...)
	}
	gauge(machineCores, float64(runtime.NumCPU()))
	gauge(machineMemory, float64(c.cfg.Memory))
	for _, p := range c.cfg.Pods() {
		c.group(out, p.Cgroup, []string{"", p.Cgroup, "", "", p.Namespace, p.Name})
		for _, ctr := range p.Containers {
			id := p.Cgroup + "/" + ctr.ID
			l := []string{ctr.Name, id, ctr.Image, ctr.ID, p.Namespace, p.Name}
			if !c.group(out, id, l) {
				continue // it has ended since
			}
			gauge(lastSeen, now, l...)
			if !ctr.Started.IsZero() {
				gauge(startTime, float64(ctr.Started.Unix()), l...)
			}
		}
		if !p.HostNetwork && p.SandboxID != "" {
			c.links(out, p)
		}
	}
}

// group sends what there is of one control group; false when it does not exist.
func (c *Collector) group(out chan<- prometheus.Metric, path string, l []string) bool {
	s, ok := c.groups.read(path)
	if !ok {
		return false
	}
	s.Processes = uint64(len(c.groups.processes(path)))
	for _, r := range sampleRows {
		send(out, r, &s, l)
	}
	if s.Quota > 0 {
		for _, r := range quotaRows {
			send(out, r, &s, l)
		}
	}
	for kind, r := range faultRows {
		send(out, r, &s, l, kind, "container")
	}
	for device, io := range s.Devices {
		name := c.device(device)
		for _, r := range deviceRows {
			send(out, r, io, l, name)
		}
	}
	return true
}

// device returns the name of a device by its numbers, "8:0", as /dev/sda: dashboards choose disks by their names.
func (c *Collector) device(numbers string) string {
	target, err := os.Readlink(filepath.Join(c.sys, "dev/block", numbers))
	if err != nil {
		return numbers
	}
	return "/dev/" + filepath.Base(target)
}

// links sends the counters of a pod's interfaces, which are read in the network namespace of its sandbox's process.
func (c *Collector) links(out chan<- prometheus.Metric, p Pod) {
	id := p.Cgroup + "/" + p.SandboxID
	pids := c.groups.processes(id)
	if len(pids) == 0 {
		return
	}
	data, err := os.ReadFile(filepath.Join(c.proc, pids[0], "net/dev"))
	if err != nil {
		return // the sandbox has ended since
	}
	for _, i := range parseNetDev(data) {
		for _, r := range linkRows {
			send(out, r, i, []string{"", id, "", p.SandboxID, p.Namespace, p.Name}, i.name)
		}
	}
}

func send[T any](out chan<- prometheus.Metric, r row[T], v T, l []string, more ...string) {
	if len(more) > 0 {
		l = append(append(make([]string, 0, len(l)+len(more)), l...), more...)
	}
	out <- prometheus.MustNewConstMetric(r.desc, r.kind, r.value(v), l...)
}
