package profile

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/balsahq/balsa/leader/scheduler/rules"
)

// policy is the file of kube-scheduler's --policy-config-file, which v1.23 removed.
type policy struct {
	metav1.TypeMeta `json:",inline"`
	Predicates      []predicate       `json:"predicates"`
	Priorities      []priority        `json:"priorities"`
	HardWeight      *int32            `json:"hardPodAffinitySymmetricWeight"`
	CheckAll        *bool             `json:"alwaysCheckAllPredicates"`
	Extenders       []json.RawMessage `json:"extenders"`
}

type predicate struct {
	Name     string          `json:"name"`
	Argument json.RawMessage `json:"argument,omitempty"`
}

type priority struct {
	Name     string            `json:"name"`
	Weight   int64             `json:"weight"`
	Argument *priorityArgument `json:"argument,omitempty"`
}

type priorityArgument struct {
	Ratio *struct {
		Shape     []configv1.UtilizationShapePoint `json:"shape"`
		Resources []configv1.ResourceSpec          `json:"resources,omitempty"`
	} `json:"requestedToCapacityRatioArguments,omitempty"`
}

// predicates are the filters that do what a predicate did. Predicates without a filter are decided elsewhere: a pod with a
// nodeName needs no scheduler, and the conditions of a node are taints.
var predicates = map[string][]string{
	"GeneralPredicates":           {"NodeResourcesFit", "NodePorts", "NodeAffinity"},
	"PodFitsResources":            {"NodeResourcesFit"},
	"PodFitsHost":                 {},
	"HostName":                    {},
	"PodFitsHostPorts":            {"NodePorts"},
	"PodFitsPorts":                {"NodePorts"},
	"MatchNodeSelector":           {"NodeAffinity"},
	"PodMatchNodeSelector":        {"NodeAffinity"},
	"NoDiskConflict":              {"VolumeRestrictions"},
	"NodeDiskConflict":            {"VolumeRestrictions"},
	"MaxEBSVolumeCount":           {"NodeVolumeLimits"},
	"MaxGCEPDVolumeCount":         {"NodeVolumeLimits"},
	"MaxAzureDiskVolumeCount":     {"NodeVolumeLimits"},
	"MaxCinderVolumeCount":        {"NodeVolumeLimits"},
	"MaxCSIVolumeCountPred":       {"NodeVolumeLimits"},
	"MaxPDVolumeCountPredicate":   {"NodeVolumeLimits"},
	"NoVolumeZoneConflict":        {"VolumeZone"},
	"VolumeZonePredicate":         {"VolumeZone"},
	"CheckVolumeBinding":          {"VolumeBinding"},
	"VolumeBindingPredicate":      {"VolumeBinding"},
	"PodToleratesNodeTaints":      {"TaintToleration"},
	"CheckNodeUnschedulable":      {"NodeUnschedulable"},
	"CheckNodeCondition":          {"TaintToleration"},
	"CheckNodeMemoryPressure":     {"TaintToleration"},
	"NodeMemoryPressurePredicate": {"TaintToleration"},
	"CheckNodeDiskPressure":       {"TaintToleration"},
	"CheckNodePIDPressure":        {"TaintToleration"},
	"MatchInterPodAffinity":       {"InterPodAffinity"},
	"PodAffinityPredicate":        {"InterPodAffinity"},
	"EvenPodsSpread":              {"PodTopologySpread"},
}

// mandatory are the filters that a Policy could not leave out.
var mandatory = []string{"TaintToleration", "NodeUnschedulable"}

// priorities are the scores that do what a priority did.
var priorities = map[string]string{
	"LeastRequestedPriority":           "NodeResourcesFit",
	"MostRequestedPriority":            "NodeResourcesFit",
	"RequestedToCapacityRatioPriority": "NodeResourcesFit",
	"BalancedResourceAllocation":       "NodeResourcesBalancedAllocation",
	"SelectorSpreadPriority":           "PodTopologySpread",
	"ServiceSpreadingPriority":         "PodTopologySpread",
	"EvenPodsSpreadPriority":           "PodTopologySpread",
	"InterPodAffinityPriority":         "InterPodAffinity",
	"NodeAffinityPriority":             "NodeAffinity",
	"TaintTolerationPriority":          "TaintToleration",
	"ImageLocalityPriority":            "ImageLocality",
}

// settings returns the one profile that the policy describes. Predicates that are not given at all are the default ones;
// so are priorities.
func (p *policy) settings() (Settings, error) {
	var f faults
	set := newPlugins()
	f.when(p.CheckAll != nil && *p.CheckAll, "alwaysCheckAllPredicates: the first filter that refuses a node ends its search")
	f.when(len(p.Extenders) > 0, "extenders: this scheduler asks no other program")
	if p.HardWeight != nil {
		set.podAffinity(&configv1.InterPodAffinityArgs{HardPodAffinityWeight: p.HardWeight}, "hardPodAffinitySymmetricWeight", &f)
	}
	if p.Predicates != nil {
		p.filters(set, &f)
	}
	if p.Priorities != nil {
		p.scores(set, &f)
	}
	profile := Profile{Name: v1.DefaultSchedulerName, Filters: set.filters(), Scores: set.scores()}
	return Settings{Profiles: []Profile{profile}}, errors.Join(f...)
}

// filters disables the filters that stand for predicates and are not given. Filters that no predicate stood for stay.
func (p *policy) filters(set *plugins, f *faults) {
	given := slices.Clone(mandatory)
	for _, one := range p.Predicates {
		names, ok := predicates[one.Name]
		f.when(!ok, "predicates: there is no predicate %s", one.Name)
		f.when(one.Argument != nil, "predicates: %s: custom predicates are not supported: use node affinity", one.Name)
		given = append(given, names...)
	}
	for _, names := range predicates {
		for _, name := range names {
			if !slices.Contains(given, name) {
				set.disableFilter(name)
			}
		}
	}
}

func (p *policy) scores(set *plugins, f *faults) {
	set.disableScore("*")
	taken := map[string]string{}
	for _, one := range p.Priorities {
		if one.Name == "EqualPriority" {
			continue // it gave every node the same score
		}
		name, ok := priorities[one.Name]
		where := fmt.Sprintf("priorities: %s", one.Name)
		if !ok {
			f.add("%s: there is no such priority", where)
			continue
		}
		f.when(taken[name] != "", "%s: %s is the same rule here", where, taken[name])
		taken[name] = one.Name
		f.when(one.Argument != nil && one.Name != "RequestedToCapacityRatioPriority", "%s takes no argument", where)
		weight := int32(one.Weight)
		f.when(one.Weight < 1 || one.Weight > 100, "%s: the weight must be 1 to 100", where)
		strategy := &configv1.ScoringStrategy{Type: configv1.LeastAllocated}
		switch one.Name {
		case "MostRequestedPriority":
			strategy.Type = configv1.MostAllocated
		case "RequestedToCapacityRatioPriority":
			strategy.Type = configv1.RequestedToCapacityRatio
			if one.Argument != nil && one.Argument.Ratio != nil {
				strategy.Resources, strategy.RequestedToCapacityRatio = one.Argument.Ratio.Resources, &configv1.RequestedToCapacityRatioParam{Shape: one.Argument.Ratio.Shape}
			}
		}
		if name == rules.LeastAllocated.Name {
			set.fit(&configv1.NodeResourcesFitArgs{ScoringStrategy: strategy}, where, f)
		}
		if one.Weight >= 1 && one.Weight <= 100 {
			set.enableScore(name, &weight, where, f)
		}
	}
}
