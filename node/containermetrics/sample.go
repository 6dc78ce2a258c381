package containermetrics

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Sample is what one control group has used and may use.
type Sample struct {
	CPU, User, System, ThrottledTime time.Duration
	Periods, ThrottledPeriods        uint64

	Memory, MaxMemory, WorkingSet, RSS, Cache, Mapped, Swap uint64 // bytes
	Failures, Faults, MajorFaults, OOMKills                 uint64

	Threads, Processes uint64
	Devices            map[string]IO // by "major:minor"

	// Limits; 0 is none.
	Shares, Period, MemoryLimit uint64
	Quota                       int64 // microseconds a period
}

// IO is what went to and from a device.
type IO struct{ Reads, Writes, ReadBytes, WriteBytes uint64 }

// noLimit is above every real limit of memory: version 1 shows the largest number of pages for none.
const noLimit = 1 << 60

// groups reads control groups below the place where they are mounted.
type groups struct {
	root    string
	unified bool
}

func newGroups(root string) groups {
	_, err := os.Stat(filepath.Join(root, "cgroup.controllers"))
	return groups{root: root, unified: err == nil}
}

// read returns the sample of a group; false when there is no such group.
func (g groups) read(path string) (Sample, bool) {
	if g.unified {
		return sampleUnified(dir(filepath.Join(g.root, path)))
	}
	return sampleV1(func(controller string) dir { return dir(filepath.Join(g.root, controller, path)) })
}

// processes returns the processes of a group.
func (g groups) processes(path string) []string {
	if g.unified {
		return strings.Fields(string(dir(filepath.Join(g.root, path)).file("cgroup.procs")))
	}
	return strings.Fields(string(dir(filepath.Join(g.root, "memory", path)).file("cgroup.procs")))
}

// dir is the directory of a group. A file that is not there reads as empty: not every kernel has every file.
type dir string

func (d dir) file(name string) []byte {
	data, err := os.ReadFile(filepath.Join(string(d), name))
	if err != nil {
		return nil
	}
	return data
}

// number reads a file with one number; "max" and what is no number are 0.
func (d dir) number(name string) uint64 { return number(string(bytes.TrimSpace(d.file(name)))) }

func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// keyed reads a file of lines "key number".
func (d dir) keyed(name string) map[string]uint64 { return parseKeyed(d.file(name)) }

func parseKeyed(data []byte) map[string]uint64 {
	out := map[string]uint64{}
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			out[key] = number(strings.TrimSpace(value))
		}
	}
	return out
}

func sampleUnified(d dir) (Sample, bool) {
	if d.file("cgroup.procs") == nil && d.file("cgroup.controllers") == nil {
		return Sample{}, false
	}
	cpu, memory := d.keyed("cpu.stat"), d.keyed("memory.stat")
	micros := func(key string) time.Duration { return time.Duration(cpu[key]) * time.Microsecond }
	s := Sample{
		CPU: micros("usage_usec"), User: micros("user_usec"), System: micros("system_usec"), ThrottledTime: micros("throttled_usec"),
		Periods: cpu["nr_periods"], ThrottledPeriods: cpu["nr_throttled"],
		Memory: d.number("memory.current"), MaxMemory: d.number("memory.peak"), RSS: memory["anon"], Cache: memory["file"], Mapped: memory["file_mapped"],
		Swap: d.number("memory.swap.current"), Faults: memory["pgfault"], MajorFaults: memory["pgmajfault"],
		Threads: d.number("pids.current"), Devices: parseIOStat(d.file("io.stat")), MemoryLimit: d.number("memory.max"),
	}
	events := d.keyed("memory.events")
	s.OOMKills, s.Failures = events["oom_kill"], events["max"]
	s.WorkingSet = minus(s.Memory, memory["inactive_file"])
	if w := d.number("cpu.weight"); w > 0 {
		s.Shares = 2 + (w-1)*262142/9999
	}
	if quota, period, ok := strings.Cut(strings.TrimSpace(string(d.file("cpu.max"))), " "); ok {
		s.Period, s.Quota = number(period), int64(number(quota))
	}
	return s, true
}

func sampleV1(of func(controller string) dir) (Sample, bool) {
	cpu, account, mem := of("cpu"), of("cpuacct"), of("memory")
	if mem.file("cgroup.procs") == nil && cpu.file("cgroup.procs") == nil {
		return Sample{}, false
	}
	throttling, memory := cpu.keyed("cpu.stat"), mem.keyed("memory.stat")
	s := Sample{
		CPU: time.Duration(account.number("cpuacct.usage")), User: time.Duration(account.number("cpuacct.usage_user")), System: time.Duration(account.number("cpuacct.usage_sys")),
		ThrottledTime: time.Duration(throttling["throttled_time"]), Periods: throttling["nr_periods"], ThrottledPeriods: throttling["nr_throttled"],
		Memory: mem.number("memory.usage_in_bytes"), MaxMemory: mem.number("memory.max_usage_in_bytes"),
		RSS: memory["total_rss"], Cache: memory["total_cache"], Mapped: memory["total_mapped_file"], Swap: memory["total_swap"],
		Faults: memory["total_pgfault"], MajorFaults: memory["total_pgmajfault"], Failures: mem.number("memory.failcnt"),
		OOMKills: mem.keyed("memory.oom_control")["oom_kill"],
		Threads:  of("pids").number("pids.current"),
		Devices:  parseBlkio(of("blkio").file("blkio.throttle.io_service_bytes"), of("blkio").file("blkio.throttle.io_serviced")),
		Shares:   cpu.number("cpu.shares"), Period: cpu.number("cpu.cfs_period_us"), Quota: int64(number(strings.TrimSpace(string(cpu.file("cpu.cfs_quota_us"))))),
	}
	s.WorkingSet = minus(s.Memory, memory["total_inactive_file"])
	if limit := mem.number("memory.limit_in_bytes"); limit < noLimit {
		s.MemoryLimit = limit
	}
	return s, true
}

// parseIOStat reads lines "8:0 rbytes=1 wbytes=2 rios=3 wios=4 …".
func parseIOStat(data []byte) map[string]IO {
	out := map[string]IO{}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		var io IO
		for _, f := range fields[1:] {
			key, value, _ := strings.Cut(f, "=")
			switch key {
			case "rbytes":
				io.ReadBytes = number(value)
			case "wbytes":
				io.WriteBytes = number(value)
			case "rios":
				io.Reads = number(value)
			case "wios":
				io.Writes = number(value)
			}
		}
		out[fields[0]] = io
	}
	return out
}

// parseBlkio reads two files of lines "8:0 Read 17": bytes, and how many operations.
func parseBlkio(sizes, counts []byte) map[string]IO {
	out := map[string]IO{}
	each := func(data []byte, put func(io *IO, operation string, n uint64)) {
		for line := range strings.Lines(string(data)) {
			if f := strings.Fields(line); len(f) == 3 {
				io := out[f[0]]
				put(&io, f[1], number(f[2]))
				out[f[0]] = io
			}
		}
	}
	each(sizes, func(io *IO, operation string, n uint64) {
		switch operation {
		case "Read":
			io.ReadBytes = n
		case "Write":
			io.WriteBytes = n
		}
	})
	each(counts, func(io *IO, operation string, n uint64) {
		switch operation {
		case "Read":
			io.Reads = n
		case "Write":
			io.Writes = n
		}
	})
	return out
}

// link are the counters of a network interface.
type link struct {
	name                                    string
	rxBytes, rxPackets, rxErrors, rxDropped uint64
	txBytes, txPackets, txErrors, txDropped uint64
}

// parseNetDev reads /proc/PID/net/dev but for the loopback interface.
func parseNetDev(data []byte) (out []link) {
	for line := range strings.Lines(string(data)) {
		name, counters, ok := strings.Cut(line, ":")
		f := strings.Fields(counters)
		if name = strings.TrimSpace(name); !ok || len(f) < 12 || name == "lo" {
			continue
		}
		out = append(out, link{
			name: name, rxBytes: number(f[0]), rxPackets: number(f[1]), rxErrors: number(f[2]), rxDropped: number(f[3]),
			txBytes: number(f[8]), txPackets: number(f[9]), txErrors: number(f[10]), txDropped: number(f[11]),
		})
	}
	return out
}

func minus(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}
