package stats

import (
	"context"

	v1 "k8s.io/api/core/v1"
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
	// RootDir is the node agent's directory: its file system is the node's.
	RootDir string
	// CgroupRoot is where the cgroup file systems are mounted; "" means /sys/fs/cgroup.
	CgroupRoot string
	Runtime    Runtime
	Images     Images
	// Pods returns the pods of this node; the summary shows these.
	Pods func() []*v1.Pod
}

// Provider collects statistics when asked; it keeps nothing running.
type Provider struct{ cfg Config }

// New returns a Provider.
func New(cfg Config) *Provider { return &Provider{cfg: cfg} }

// Summary collects the statistics of the node and its pods now.
func (p *Provider) Summary(ctx context.Context) (*statsv1.Summary, error) { return nil, nil }
