package config

import (
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/balsahq/balsa/node/eviction"
	"github.com/balsahq/balsa/node/shutdown"
)

// Protection configures how a node keeps itself running: what it keeps from pods, when it evicts some, which images it
// removes, and how long pods have to end when the machine goes down. The names are the kubelet's.
type Protection struct {
	SystemReserved, KubeReserved map[string]string
	Eviction                     eviction.Flags
	ImageGCHigh, ImageGCLow      int // percent
	ImageMinAge, ImageMaxAge     time.Duration
	Shutdown                     shutdown.Flags
}

func defaultProtection() Protection {
	return Protection{
		SystemReserved: map[string]string{}, KubeReserved: map[string]string{}, Eviction: eviction.DefaultFlags(),
		ImageGCHigh: 85, ImageGCLow: 80, ImageMinAge: 2 * time.Minute,
		Shutdown: shutdown.Flags{ByPriority: map[string]string{}},
	}
}

// reservable are the resources that can be kept from pods.
var reservable = []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, "pid"}

// Reserved returns what is kept from pods, with every fault of the two flags.
func (p *Protection) Reserved() (v1.ResourceList, []error) {
	sum := v1.ResourceList{}
	var faults []error
	for flag, texts := range map[string]map[string]string{"system-reserved": p.SystemReserved, "kube-reserved": p.KubeReserved} {
		for _, name := range slices.Sorted(maps.Keys(texts)) {
			q, err := resource.ParseQuantity(texts[name])
			switch {
			case !slices.Contains(reservable, v1.ResourceName(name)):
				faults = append(faults, fmt.Errorf("--%s %s: give amounts of cpu, memory, ephemeral-storage or pid", flag, name))
			case err != nil || q.Sign() < 0:
				faults = append(faults, fmt.Errorf("--%s %s=%s: give an amount such as 500m or 1Gi", flag, name, texts[name]))
			default:
				have := sum[v1.ResourceName(name)]
				have.Add(q)
				sum[v1.ResourceName(name)] = have
			}
		}
	}
	return sum, faults
}

func (p *Protection) validate() []error {
	_, faults := p.Reserved()
	if _, err := p.Eviction.Parse(); err != nil {
		faults = append(faults, err)
	}
	if _, err := p.Shutdown.Parse(); err != nil {
		faults = append(faults, err)
	}
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if p.ImageGCHigh < 1 || p.ImageGCHigh > 100 || p.ImageGCLow < 1 || p.ImageGCLow >= p.ImageGCHigh {
		fault("--image-gc-low-threshold %d, --image-gc-high-threshold %d: give percentages from 1 to 100, the low one below the high one", p.ImageGCLow, p.ImageGCHigh)
	}
	if p.ImageMinAge <= 0 {
		fault("--image-minimum-gc-age %s: give a time above 0", p.ImageMinAge)
	}
	if p.ImageMaxAge < 0 || p.ImageMaxAge != 0 && p.ImageMaxAge <= p.ImageMinAge {
		fault("--image-maximum-gc-age %s: give a time above --image-minimum-gc-age, or 0 for no limit", p.ImageMaxAge)
	}
	return faults
}
