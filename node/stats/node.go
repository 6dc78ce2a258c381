package stats

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// node tells about the machine.
func (p *Provider) node(ctx context.Context, now time.Time) statsv1.NodeStats {
	out := statsv1.NodeStats{NodeName: p.cfg.NodeName, Fs: p.filesystem(p.cfg.RootDir, now), Network: p.nodeNetwork(now), Rlimit: p.rlimit(now)}
	if boot, err := p.bootTime(); err == nil {
		out.StartTime = metav1.NewTime(boot)
	}
	if nanos, err := p.nodeCPU(); err == nil {
		out.CPU = &statsv1.CPUStats{Time: metav1.NewTime(now), UsageCoreNanoSeconds: &nanos, UsageNanoCores: p.rate("node", now, nanos)}
	}
	if info, err := p.meminfo(); err == nil {
		out.Memory, out.Swap = nodeMemory(info, now)
	}
	if p.cfg.Images != nil {
		if info, err := p.cfg.Images.ImageFsInfo(ctx); err == nil {
			out.Runtime = &statsv1.RuntimeStats{
				ImageFs:     p.imageFs(info.GetImageFilesystems(), now),
				ContainerFs: p.imageFs(info.GetContainerFilesystems(), now),
			}
		}
	}
	return out
}

func (p *Provider) imageFs(list []*runtimeapi.FilesystemUsage, now time.Time) *statsv1.FsStats {
	if len(list) == 0 {
		return nil
	}
	fs := p.filesystem(list[0].GetFsId().GetMountpoint(), now)
	if fs != nil {
		fs.UsedBytes, fs.InodesUsed = number(list[0].GetUsedBytes()), number(list[0].GetInodesUsed())
	}
	return fs
}

// nodeCPU returns the CPU time used since boot, in nanoseconds: of the root cgroup, v1 or v2, else of /proc/stat.
func (p *Provider) nodeCPU() (uint64, error) {
	if data, err := os.ReadFile(filepath.Join(p.cfg.CgroupRoot, "cpuacct", "cpuacct.usage")); err == nil {
		return strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	}
	if data, err := os.ReadFile(filepath.Join(p.cfg.CgroupRoot, "cpu.stat")); err == nil {
		if micros, ok := keyed(data, "usage_usec"); ok {
			return micros * 1000, nil
		}
	}
	data, err := os.ReadFile(filepath.Join(p.proc, "stat"))
	if err != nil {
		return 0, err
	}
	return parseProcStat(data)
}

// userHz is the unit of /proc/stat: the kernel shows hundredths of a second on every architecture that matters.
const userHz = 100

// parseProcStat adds up the busy times of the line "cpu": all but idle and iowait; guest times are part of user time.
func parseProcStat(data []byte) (uint64, error) {
	line, _, _ := bytes.Cut(data, []byte{'\n'})
	fields := strings.Fields(string(line))
	if len(fields) < 5 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat: unexpected line %q", line)
	}
	var ticks uint64
	for i, f := range fields[1:min(len(fields), 9)] {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, err
		}
		if i != 3 && i != 4 {
			ticks += n
		}
	}
	return ticks * uint64(time.Second/userHz), nil
}

// keyed finds "key value" in the lines of data.
func keyed(data []byte, key string) (uint64, bool) {
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		if k, v, ok := strings.Cut(lines.Text(), " "); ok && strings.TrimSuffix(k, ":") == key {
			n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// bootTime is when the machine was started.
func (p *Provider) bootTime() (time.Time, error) {
	data, err := os.ReadFile(filepath.Join(p.proc, "stat"))
	if err != nil {
		return time.Time{}, err
	}
	seconds, ok := keyed(data, "btime")
	if !ok {
		return time.Time{}, fmt.Errorf("/proc/stat: no btime")
	}
	return time.Unix(int64(seconds), 0), nil
}

// meminfo reads /proc/meminfo, in bytes.
func (p *Provider) meminfo() (map[string]uint64, error) {
	data, err := os.ReadFile(filepath.Join(p.proc, "meminfo"))
	if err != nil {
		return nil, err
	}
	out := map[string]uint64{}
	for _, line := range strings.Split(string(data), "\n") {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(value, " kB")), 10, 64)
		if err == nil && strings.HasSuffix(value, " kB") {
			out[name] = n << 10
		}
	}
	return out, nil
}

// nodeMemory makes statistics of /proc/meminfo. As everywhere in Kubernetes, the working set is what is used less the
// file pages that are easily given back, and what is available is the capacity less the working set.
func nodeMemory(info map[string]uint64, now time.Time) (*statsv1.MemoryStats, *statsv1.SwapStats) {
	at := metav1.NewTime(now)
	total, anon := info["MemTotal"], info["AnonPages"]
	used := minus(total, info["MemFree"])
	working := minus(used, info["Inactive(file)"])
	available := minus(total, working)
	swapUsed, swapFree := minus(info["SwapTotal"], info["SwapFree"]), info["SwapFree"]
	return &statsv1.MemoryStats{Time: at, AvailableBytes: &available, UsageBytes: &used, WorkingSetBytes: &working, RSSBytes: &anon},
		&statsv1.SwapStats{Time: at, SwapUsageBytes: &swapUsed, SwapAvailableBytes: &swapFree}
}

func minus(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}

// rlimit tells how many processes there may be and are.
func (p *Provider) rlimit(now time.Time) *statsv1.RlimitStats {
	out := &statsv1.RlimitStats{Time: metav1.NewTime(now)}
	if most := maxPIDs(p.proc); most > 0 {
		out.MaxPID = &most
	}
	if data, err := os.ReadFile(filepath.Join(p.proc, "loadavg")); err == nil {
		fields := strings.Fields(string(data)) // 0.00 0.01 0.05 RUNNING/ALL LASTPID
		if len(fields) == 5 {
			_, all, _ := strings.Cut(fields[3], "/")
			if n, err := strconv.ParseInt(all, 10, 64); err == nil {
				out.NumOfRunningProcesses = &n
			}
		}
	}
	return out
}

// MaxPIDs returns how many processes and threads this machine may have; 0 when that cannot be read.
func MaxPIDs() int64 { return maxPIDs("/proc") }

// maxPIDs returns the smaller one of the kernel's two limits.
func maxPIDs(proc string) (most int64) {
	for _, file := range []string{"sys/kernel/pid_max", "sys/kernel/threads-max"} {
		data, _ := os.ReadFile(filepath.Join(proc, file))
		if n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64); err == nil && (most == 0 || n < most) {
			most = n
		}
	}
	return most
}

// nodeNetwork tells about the interface of the default route.
func (p *Provider) nodeNetwork(now time.Time) *statsv1.NetworkStats {
	data, err := os.ReadFile(filepath.Join(p.proc, "net/dev"))
	if err != nil {
		return nil
	}
	out := &statsv1.NetworkStats{Time: metav1.NewTime(now), Interfaces: parseNetDev(data)}
	name := p.defaultInterface()
	for _, i := range out.Interfaces {
		if i.Name == name {
			out.InterfaceStats = i
		}
	}
	return out
}

// defaultInterface returns the interface of the IPv4 default route; "" when there is none.
func (p *Provider) defaultInterface() string {
	data, err := os.ReadFile(filepath.Join(p.proc, "net/route"))
	if err != nil {
		return ""
	}
	for _, line := range strings.Split(string(data), "\n") {
		if f := strings.Fields(line); len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" {
			return f[0]
		}
	}
	return ""
}

// parseNetDev reads /proc/net/dev but for the loopback interface.
func parseNetDev(data []byte) []statsv1.InterfaceStats {
	var out []statsv1.InterfaceStats
	for _, line := range strings.Split(string(data), "\n") {
		name, counters, ok := strings.Cut(line, ":")
		f := strings.Fields(counters)
		if name = strings.TrimSpace(name); !ok || len(f) < 16 || name == "lo" {
			continue
		}
		n := func(i int) *uint64 {
			v, err := strconv.ParseUint(f[i], 10, 64)
			if err != nil {
				return nil
			}
			return &v
		}
		out = append(out, statsv1.InterfaceStats{Name: name, RxBytes: n(0), RxErrors: n(2), TxBytes: n(8), TxErrors: n(10)})
	}
	return out
}
