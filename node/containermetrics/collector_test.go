package containermetrics

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

var onePod = []Pod{{
	Namespace: "ns", Name: "p", Cgroup: "/kubepods/podu", SandboxID: "box",
	Containers: []Container{{Name: "c", ID: "abc", Image: "busybox:1", Started: time.Unix(1000, 0)}, {Name: "ended", ID: "gone"}},
}}

// want are lines that both versions of control groups must give for the files below.
const want = `
# HELP container_cpu_cfs_throttled_periods_total Number of throttled period intervals.
# TYPE container_cpu_cfs_throttled_periods_total counter
container_cpu_cfs_throttled_periods_total{container="c",id="/kubepods/podu/abc",image="busybox:1",name="abc",namespace="ns",pod="p"} 3
# HELP container_cpu_usage_seconds_total Cumulative cpu time consumed in seconds.
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="c",id="/kubepods/podu/abc",image="busybox:1",name="abc",namespace="ns",pod="p"} 1.5
# HELP container_fs_reads_bytes_total Cumulative count of bytes read.
# TYPE container_fs_reads_bytes_total counter
container_fs_reads_bytes_total{container="c",device="/dev/sda",id="/kubepods/podu/abc",image="busybox:1",name="abc",namespace="ns",pod="p"} 4096
# HELP container_fs_writes_total Cumulative count of writes completed.
# TYPE container_fs_writes_total counter
container_fs_writes_total{container="c",device="/dev/sda",id="/kubepods/podu/abc",image="busybox:1",name="abc",namespace="ns",pod="p"} 7
# HELP container_memory_working_set_bytes Current working set in bytes.
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="c",id="/kubepods/podu/abc",image="busybox:1",name="abc",namespace="ns",pod="p"} 700
# HELP container_network_receive_packets_dropped_total Cumulative count of packets dropped while receiving.
# TYPE container_network_receive_packets_dropped_total counter
container_network_receive_packets_dropped_total{container="",id="/kubepods/podu/box",image="",interface="eth0",name="box",namespace="ns",pod="p"} 4
# HELP container_network_transmit_bytes_total Cumulative count of bytes transmitted.
# TYPE container_network_transmit_bytes_total counter
container_network_transmit_bytes_total{container="",id="/kubepods/podu/box",image="",interface="eth0",name="box",namespace="ns",pod="p"} 9
# HELP container_oom_events_total Count of out of memory events observed for the container.
# TYPE container_oom_events_total counter
container_oom_events_total{container="c",id="/kubepods/podu/abc",image="busybox:1",name="abc",namespace="ns",pod="p"} 2
# HELP container_processes Number of processes running inside the container.
# TYPE container_processes gauge
container_processes{container="c",id="/kubepods/podu/abc",image="busybox:1",name="abc",namespace="ns",pod="p"} 2
# HELP container_spec_memory_limit_bytes Memory limit for the container.
# TYPE container_spec_memory_limit_bytes gauge
container_spec_memory_limit_bytes{container="c",id="/kubepods/podu/abc",image="busybox:1",name="abc",namespace="ns",pod="p"} 0
# HELP container_start_time_seconds Start time of the container since unix epoch in seconds.
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container="c",id="/kubepods/podu/abc",image="busybox:1",name="abc",namespace="ns",pod="p"} 1000
`

var wanted = []string{
	"container_cpu_cfs_throttled_periods_total", "container_cpu_usage_seconds_total", "container_fs_reads_bytes_total", "container_fs_writes_total",
	"container_memory_working_set_bytes", "container_network_receive_packets_dropped_total", "container_network_transmit_bytes_total",
	"container_oom_events_total", "container_processes", "container_spec_memory_limit_bytes", "container_start_time_seconds",
}

func compare(t *testing.T, root string) {
	t.Helper()
	proc := t.TempDir()
	write(t, proc, map[string]string{"77/net/dev": "Inter-|   Receive\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 5 1 2 4 0 0 0 0 9 1 3 0 0 0 0 0\n"})
	c := New(Config{CgroupRoot: root, Pods: func() []Pod { return onePod }, Memory: 1})
	c.proc, c.sys = proc, t.TempDir()
	if err := os.MkdirAll(filepath.Join(c.sys, "dev/block"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../devices/pci0/block/sda", filepath.Join(c.sys, "dev/block/8:0")); err != nil {
		t.Fatal(err)
	}
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), wanted...); err != nil {
		t.Error(err)
	}
}

func TestVersionTwo(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		"cgroup.controllers": "cpu memory io pids\n", "kubepods/podu/box/cgroup.procs": "77\n",
		"kubepods/podu/abc/cgroup.procs":     "78\n79\n",
		"kubepods/podu/abc/cpu.stat":         "usage_usec 1500000\nuser_usec 1\nsystem_usec 2\nnr_periods 9\nnr_throttled 3\nthrottled_usec 5\n",
		"kubepods/podu/abc/cpu.max":          "50000 100000\n",
		"kubepods/podu/abc/memory.current":   "1000\n",
		"kubepods/podu/abc/memory.max":       "max\n",
		"kubepods/podu/abc/memory.stat":      "anon 500\nfile 400\ninactive_file 300\n",
		"kubepods/podu/abc/memory.events":    "max 1\noom 2\noom_kill 2\n",
		"kubepods/podu/abc/io.stat":          "8:0 rbytes=4096 wbytes=1 rios=2 wios=7 dbytes=0 dios=0\n",
		"kubepods/podu/besteffort/unrelated": "",
	})
	compare(t, root)
}

func TestVersionOne(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		"memory/kubepods/podu/box/cgroup.procs":                   "77\n",
		"memory/kubepods/podu/abc/cgroup.procs":                   "78\n79\n",
		"memory/kubepods/podu/abc/memory.usage_in_bytes":          "1000\n",
		"memory/kubepods/podu/abc/memory.limit_in_bytes":          "9223372036854771712\n",
		"memory/kubepods/podu/abc/memory.stat":                    "cache 400\nrss 500\ntotal_rss 500\ntotal_inactive_file 300\n",
		"memory/kubepods/podu/abc/memory.oom_control":             "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
		"cpuacct/kubepods/podu/abc/cpuacct.usage":                 "1500000000\n",
		"cpu/kubepods/podu/abc/cpu.stat":                          "nr_periods 9\nnr_throttled 3\nthrottled_time 5\n",
		"cpu/kubepods/podu/abc/cpu.cfs_quota_us":                  "50000\n",
		"blkio/kubepods/podu/abc/blkio.throttle.io_service_bytes": "8:0 Read 4096\n8:0 Write 1\n8:0 Total 4097\nTotal 4097\n",
		"blkio/kubepods/podu/abc/blkio.throttle.io_serviced":      "8:0 Read 2\n8:0 Write 7\nTotal 9\n",
	})
	compare(t, root)
}
