package main

import (
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
)

// bindProtection registers the kubelet's flags by which a node keeps itself running.
func bindProtection(f *pflag.FlagSet, p *config.Protection) {
	reserved := func(m *map[string]string, name, whom string) {
		f.Var(cliflag.NewMapStringString(m), name, "resources kept from pods for "+whom+", as cpu=200m,memory=500Mi,ephemeral-storage=1Gi,pid=1000; they are taken off what the node offers")
	}
	reserved(&p.SystemReserved, "system-reserved", "the system")
	reserved(&p.KubeReserved, "kube-reserved", "this program and the container runtime")
	e := &p.Eviction
	f.Var(cliflag.NewLangleSeparatedMapStringString(&e.Hard), "eviction-hard", "evict a pod at once when less than this is left, as memory.available<1Gi,nodefs.available<10%: signals are memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree and pid.available. What you give replaces all defaults; empty is none")
	f.Var(cliflag.NewLangleSeparatedMapStringString(&e.Soft), "eviction-soft", "evict a pod with a grace period when less than this is left for the time in --eviction-soft-grace-period, as memory.available<1.5Gi")
	f.Var(cliflag.NewMapStringString(&e.SoftGrace), "eviction-soft-grace-period", "how long each threshold of --eviction-soft must be crossed before a pod is evicted, as memory.available=1m30s")
	f.Var(cliflag.NewMapStringString(&e.MinimumReclaim), "eviction-minimum-reclaim", "how much more than a threshold must be left before evictions end, as imagefs.available=2Gi")
	f.IntVar(&e.MaxPodGrace, "eviction-max-pod-grace-period", e.MaxPodGrace, "the longest grace period, in seconds, of pods that --eviction-soft evicts")
	f.DurationVar(&e.TransitionPeriod, "eviction-pressure-transition-period", e.TransitionPeriod, "how long the Node's conditions MemoryPressure, DiskPressure and PIDPressure stay after their cause was last seen")
	s := &p.Shutdown
	f.DurationVar(&s.Period, "shutdown-grace-period", s.Period, "how long the shutdown of a machine with systemd waits for its pods to end; 0 for not at all")
	f.DurationVar(&s.Critical, "shutdown-grace-period-critical-pods", s.Critical, "the part of --shutdown-grace-period that is kept for critical pods, which end after all others")
	f.Var(cliflag.NewMapStringString(&s.ByPriority), "shutdown-grace-period-by-pod-priority", "instead of the two: how long pods from each priority on have to end, the lowest first, as 0=30s,100000=20s,2000000000=10s")
	f.IntVar(&p.ImageGCHigh, "image-gc-high-threshold", p.ImageGCHigh, "percent of the file system of images in use at which unused images are removed; 100 for never")
	f.IntVar(&p.ImageGCLow, "image-gc-low-threshold", p.ImageGCLow, "percent of the file system of images in use down to which unused images are removed: the least recently used first, those that were imported and not pulled last")
	f.DurationVar(&p.ImageMinAge, "image-minimum-gc-age", p.ImageMinAge, "how long an unused image is kept at least")
	f.DurationVar(&p.ImageMaxAge, "image-maximum-gc-age", p.ImageMaxAge, "how long an unused image that was pulled is kept at most; 0 for no limit")
}
