package stats

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Runtime is the part of CRI's RuntimeService (k8s.io/cri-api/pkg/apis) that carries statistics.
type Runtime interface {
	ListPodSandboxStats(ctx context.Context, filter *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error)
	ListContainerStats(ctx context.Context, filter *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error)
}

// Images is the part of CRI's ImageManagerService that tells how full the image file system is.
type Images interface {
	ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error)
}

// Config is what a Provider needs.
type Config struct {
	NodeName string
	// RootDir is the node agent's directory: its file system is the node's, and RootDir/pods/<uid>/volumes holds
	// the volumes.
	RootDir string
	// CgroupRoot is where the cgroup file systems are mounted; "" means /sys/fs/cgroup.
	CgroupRoot string
	// LogRoot holds the directories of the pods' logs, NAMESPACE_NAME_UID each; "" means /var/log/pods.
	LogRoot string
	Runtime Runtime
	Images  Images
	// Pods returns the pods of this node; the summary shows these.
	Pods func() []*v1.Pod
	// Volume returns what a volume of a claim or of a CSI driver has and takes, nil when that is not known. It may take
	// long. nil leaves such volumes out.
	Volume func(ctx context.Context, pod *v1.Pod, name string) (*statsv1.VolumeStats, error)
}

// Validate reports every fault of the configuration at once.
func (c *Config) Validate() error {
	var errs []error
	if c.RootDir == "" {
		errs = append(errs, errors.New("stats: RootDir is empty"))
	}
	if c.Runtime == nil {
		errs = append(errs, errors.New("stats: Runtime is nil"))
	}
	if c.Pods == nil {
		errs = append(errs, errors.New("stats: Pods is nil"))
	}
	return errors.Join(errs...)
}

// Provider collects statistics when asked; it keeps nothing running. Its methods may be called at the same time.
type Provider struct {
	cfg  Config
	proc string // /proc, another directory in tests

	mu    sync.Mutex
	rates map[string]sample // the last CPU sample of the node, and of pods for which the runtime gives no rate
	disk  map[string]usage  // by directory
	asked map[string]answer // by pod and volume
}

// New returns a Provider. One is meant to be kept for the life of the agent: it remembers what is dear to find out,
// and rates need two samples.
func New(cfg Config) *Provider {
	if cfg.CgroupRoot == "" {
		cfg.CgroupRoot = "/sys/fs/cgroup"
	}
	if cfg.LogRoot == "" {
		cfg.LogRoot = "/var/log/pods"
	}
	return &Provider{cfg: cfg, proc: "/proc", rates: map[string]sample{}, disk: map[string]usage{}, asked: map[string]answer{}}
}

// Summary collects the statistics of the node and its pods now. It fails when the runtime does not answer; a number
// that cannot be had is left out.
func (p *Provider) Summary(ctx context.Context) (*statsv1.Summary, error) {
	sandboxes, err := p.sandboxes(ctx)
	if err != nil {
		return nil, fmt.Errorf("statistics of the container runtime: %w", err)
	}
	now := time.Now()
	sum := &statsv1.Summary{Node: p.node(ctx, now)}
	pods := p.cfg.Pods()
	p.askVolumes(ctx, pods, now)
	for _, pod := range pods {
		if s := sandboxes[pod.UID]; s != nil {
			sum.Pods = append(sum.Pods, p.pod(pod, s, now))
		}
	}
	p.forget(now)
	return sum, nil
}

// Pod collects the statistics of one pod now.
func (p *Provider) Pod(ctx context.Context, pod *v1.Pod) (statsv1.PodStats, error) {
	list, err := p.cfg.Runtime.ListContainerStats(ctx, &runtimeapi.ContainerStatsFilter{LabelSelector: map[string]string{podUIDLabel: string(pod.UID)}})
	if err != nil {
		return statsv1.PodStats{}, fmt.Errorf("statistics of the pod's containers: %w", err)
	}
	now := time.Now()
	defer p.forget(now)
	return p.pod(pod, &runtimeapi.PodSandboxStats{Linux: &runtimeapi.LinuxPodSandboxStats{Containers: list}}, now), nil
}

// sample is a cumulative CPU time at a time.
type sample struct {
	at       time.Time
	nanos    uint64
	rate     *uint64 // between this and the one before, in nanocores
	lastSeen time.Time
}

// minRate is the shortest time between two samples of which a rate is made.
const minRate = time.Second

// rate returns how many nanocores were used since the sample before; nil for the first one.
func (p *Provider) rate(key string, at time.Time, nanos uint64) *uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, ok := p.rates[key]
	next := sample{at: at, nanos: nanos, lastSeen: time.Now()}
	passed := at.Sub(last.at)
	switch {
	case !ok, nanos < last.nanos:
	case passed < minRate:
		return last.rate
	default:
		r := uint64(float64(nanos-last.nanos) / passed.Seconds())
		next.rate = &r
	}
	p.rates[key] = next
	return next.rate
}

// staleAfter is how long samples are kept that are not asked for.
const staleAfter = 10 * time.Minute

func (p *Provider) forget(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, s := range p.rates {
		if now.Sub(s.lastSeen) > staleAfter {
			delete(p.rates, k)
		}
	}
	for k, a := range p.asked {
		if now.Sub(a.at) > staleAfter {
			delete(p.asked, k)
		}
	}
	for k, u := range p.disk {
		if now.Sub(u.at) > staleAfter {
			delete(p.disk, k)
		}
	}
}

// sandboxes returns the newest sandbox statistics of each pod.
func (p *Provider) sandboxes(ctx context.Context) (map[types.UID]*runtimeapi.PodSandboxStats, error) {
	list, err := p.cfg.Runtime.ListPodSandboxStats(ctx, &runtimeapi.PodSandboxStatsFilter{})
	if isUnimplemented(err) {
		return p.sandboxesOfContainers(ctx)
	}
	if err != nil {
		return nil, err
	}
	out := map[types.UID]*runtimeapi.PodSandboxStats{}
	for _, s := range list {
		uid := types.UID(s.GetAttributes().GetMetadata().GetUid())
		have := out[uid]
		if have == nil || have.GetAttributes().GetMetadata().GetAttempt() < s.GetAttributes().GetMetadata().GetAttempt() {
			out[uid] = s
		}
	}
	return out, nil
}

// podUIDLabel is the label by which every container of CRI tells its pod.
const podUIDLabel = "io.kubernetes.pod.uid"

// sandboxesOfContainers serves runtimes that know statistics of containers only.
func (p *Provider) sandboxesOfContainers(ctx context.Context) (map[types.UID]*runtimeapi.PodSandboxStats, error) {
	list, err := p.cfg.Runtime.ListContainerStats(ctx, &runtimeapi.ContainerStatsFilter{})
	if err != nil {
		return nil, err
	}
	out := map[types.UID]*runtimeapi.PodSandboxStats{}
	for _, c := range list {
		uid := types.UID(c.GetAttributes().GetLabels()[podUIDLabel])
		if out[uid] == nil {
			out[uid] = &runtimeapi.PodSandboxStats{Linux: &runtimeapi.LinuxPodSandboxStats{}}
		}
		out[uid].Linux.Containers = append(out[uid].Linux.Containers, c)
	}
	return out, nil
}

func timeOf(nanos int64, now time.Time) metav1.Time {
	if nanos <= 0 {
		return metav1.NewTime(now)
	}
	return metav1.NewTime(time.Unix(0, nanos))
}
