package profile

import (
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"github.com/balsahq/balsa/leader/scheduler/rules"
)

// configure applies the args of plug-ins. It returns the bindTimeoutSeconds of VolumeBinding.
func (p *plugins) configure(list []configv1.PluginConfig, where string, f *faults) (wait time.Duration) {
	seen := map[string]bool{}
	for _, c := range list {
		f.when(seen[c.Name], "%s: %s is given twice", where, c.Name)
		seen[c.Name] = true
		read := func(args any) bool {
			err := yaml.UnmarshalStrict(c.Args.Raw, args)
			if err != nil {
				f.add("%s: %s: %w", where, c.Name, err)
			}
			return err == nil
		}
		at := where + ": " + c.Name
		switch c.Name {
		case "NodeResourcesFit":
			var a configv1.NodeResourcesFitArgs
			if read(&a) {
				p.fit(&a, at, f)
			}
		case "PodTopologySpread":
			var a configv1.PodTopologySpreadArgs
			if read(&a) {
				p.spread(&a, at, f)
			}
		case "InterPodAffinity":
			var a configv1.InterPodAffinityArgs
			if read(&a) {
				p.podAffinity(&a, at, f)
			}
		case "NodeAffinity":
			var a configv1.NodeAffinityArgs
			if read(&a) && a.AddedAffinity != nil {
				p.addedAffinity(a.AddedAffinity, at, f)
			}
		case "VolumeBinding":
			var a configv1.VolumeBindingArgs
			if read(&a) {
				f.when(len(a.Shape) > 0, "%s: shape: volumes are not scored", at)
				wait = seconds(a.BindTimeoutSeconds, at+": bindTimeoutSeconds", f)
			}
		case defaultPreemption:
			var a configv1.DefaultPreemptionArgs
			if read(&a) {
				p.preempting(&a, at, f)
			}
		case "NodeResourcesBalancedAllocation":
			var a configv1.NodeResourcesBalancedAllocationArgs
			if read(&a) {
				f.when(len(a.Resources) > 0 && !onlyDefault(a.Resources), "%s: resources: only cpu and memory, of weight 1, are balanced", at)
			}
		default:
			f.add("%s: %s takes no args", where, c.Name)
		}
	}
	return wait
}

func onlyDefault(list []configv1.ResourceSpec) bool {
	return len(list) == 2 && !slices.ContainsFunc(list, func(r configv1.ResourceSpec) bool {
		return r.Name != string(v1.ResourceCPU) && r.Name != string(v1.ResourceMemory) || r.Weight > 1
	})
}

func (p *plugins) fit(a *configv1.NodeResourcesFitArgs, at string, f *faults) {
	if len(a.IgnoredResources)+len(a.IgnoredResourceGroups) > 0 {
		for _, name := range a.IgnoredResources {
			f.when(!strings.Contains(name, "/"), "%s: ignoredResources: %s is no extended resource", at, name)
		}
		p.setFilter(rules.FitIgnoring(func(name v1.ResourceName) bool {
			group, _, _ := strings.Cut(string(name), "/")
			return slices.Contains(a.IgnoredResources, string(name)) || slices.Contains(a.IgnoredResourceGroups, group)
		}))
	}
	s := a.ScoringStrategy
	if s == nil {
		return
	}
	resources := []rules.WeightedResource{{Name: v1.ResourceCPU, Weight: 1}, {Name: v1.ResourceMemory, Weight: 1}}
	if len(s.Resources) > 0 {
		resources = nil
	}
	for _, r := range s.Resources {
		if r.Weight == 0 {
			r.Weight = 1
		}
		f.when(r.Weight < 1 || r.Weight > 100, "%s: scoringStrategy: the weight of %s must be 1 to 100", at, r.Name)
		resources = append(resources, rules.WeightedResource{Name: v1.ResourceName(r.Name), Weight: r.Weight})
	}
	f.when(s.RequestedToCapacityRatio != nil && s.Type != configv1.RequestedToCapacityRatio, "%s: scoringStrategy: a shape needs the type RequestedToCapacityRatio", at)
	switch s.Type {
	case "", configv1.LeastAllocated:
		p.setScore(rules.Allocated(rules.Least, resources))
	case configv1.MostAllocated:
		p.setScore(rules.Allocated(rules.Most, resources))
	case configv1.RequestedToCapacityRatio:
		if s.RequestedToCapacityRatio == nil {
			f.add("%s: scoringStrategy: RequestedToCapacityRatio needs a shape", at)
			return
		}
		if points, ok := shape(s.RequestedToCapacityRatio.Shape, at+": scoringStrategy: shape", f); ok {
			p.setScore(rules.Allocated(rules.Ratio(points), resources))
		}
	default:
		f.add("%s: scoringStrategy: there is no type %s", at, s.Type)
	}
}

// shape returns the points of a shape that is in order and in bounds.
func shape(list []configv1.UtilizationShapePoint, at string, f *faults) (points []rules.Point, ok bool) {
	for i, p := range list {
		if p.Utilization < 0 || p.Utilization > 100 || p.Score < 0 || p.Score > 10 || i > 0 && p.Utilization <= list[i-1].Utilization {
			f.add("%s: give points with rising utilization, 0 to 100, and scores of 0 to 10", at)
			return nil, false
		}
		points = append(points, rules.Point{Utilization: int64(p.Utilization), Score: int64(p.Score)})
	}
	f.when(len(points) == 0, "%s: give at least one point", at)
	return points, len(points) > 0
}

func (p *plugins) spread(a *configv1.PodTopologySpreadArgs, at string, f *faults) {
	switch a.DefaultingType {
	case "", configv1.SystemDefaulting:
		f.when(len(a.DefaultConstraints) > 0, "%s: defaultConstraints need the defaultingType List", at)
		return
	case configv1.ListDefaulting:
	default:
		f.add("%s: there is no defaultingType %s", at, a.DefaultingType)
	}
	for _, c := range a.DefaultConstraints {
		f.when(c.LabelSelector != nil, "%s: defaultConstraints: a selector cannot be given: the pods of the pod's services and controller count", at)
		f.when(c.MaxSkew < 1 || c.TopologyKey == "", "%s: defaultConstraints: give a maxSkew of at least 1 and a topologyKey", at)
		f.when(c.WhenUnsatisfiable != v1.DoNotSchedule && c.WhenUnsatisfiable != v1.ScheduleAnyway, "%s: defaultConstraints: whenUnsatisfiable must be DoNotSchedule or ScheduleAnyway", at)
	}
	constraints := a.DefaultConstraints
	if constraints == nil {
		constraints = []v1.TopologySpreadConstraint{}
	}
	filter, score := rules.TopologySpreadBy(constraints)
	p.setFilter(filter)
	p.setScore(score)
}

func (p *plugins) podAffinity(a *configv1.InterPodAffinityArgs, at string, f *faults) {
	hard, others := 1, rules.PreferredTermsCount
	if w := a.HardPodAffinityWeight; w != nil {
		f.when(*w < 0 || *w > 100, "%s: hardPodAffinityWeight: give 0 to 100", at)
		hard = int(*w)
	}
	if a.IgnorePreferredTermsOfExistingPods {
		others = rules.PreferredTermsIgnored
	}
	p.setScore(rules.PodAffinityScoreWith(hard, others))
}

func (p *plugins) addedAffinity(a *v1.NodeAffinity, at string, f *faults) {
	filter, score, err := rules.AddedNodeAffinity(a)
	if err != nil {
		f.add("%s: addedAffinity: %w", at, err)
		return
	}
	p.setFilter(filter)
	p.setScore(score)
}

func (p *plugins) preempting(a *configv1.DefaultPreemptionArgs, at string, f *faults) {
	p.preemption.Percent = percentage(a.MinCandidateNodesPercentage, at+": minCandidateNodesPercentage", f)
	if n := a.MinCandidateNodesAbsolute; n != nil {
		f.when(*n < 0, "%s: minCandidateNodesAbsolute must not be negative", at)
		p.preemption.Absolute = int(*n)
	}
	f.when(a.MinCandidateNodesPercentage != nil && a.MinCandidateNodesAbsolute != nil && *a.MinCandidateNodesPercentage == 0 && *a.MinCandidateNodesAbsolute == 0,
		"%s: one of minCandidateNodesPercentage and minCandidateNodesAbsolute must be more than 0", at)
}
