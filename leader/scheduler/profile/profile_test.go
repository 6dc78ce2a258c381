package profile_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balsahq/balsa/leader/scheduler/profile"
	"github.com/balsahq/balsa/leader/scheduler/rules"
)

const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

func parse(t *testing.T, text string) profile.Settings {
	t.Helper()
	s, err := profile.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func filterNames(p profile.Profile) (names []string) {
	for _, f := range p.Filters {
		names = append(names, f.Name)
	}
	return names
}

func weights(p profile.Profile) map[string]int64 {
	w := map[string]int64{}
	for _, s := range p.Scores {
		w[s.Name] = s.Weight
	}
	return w
}

func TestConfiguration(t *testing.T) {
	s := parse(t, head+`
parallelism: 8
podInitialBackoffSeconds: 2
podMaxBackoffSeconds: 20
percentageOfNodesToScore: 30
profiles:
- schedulerName: default-scheduler
  plugins:
    score:
      disabled: [{name: ImageLocality}]
      enabled: [{name: InterPodAffinity, weight: 7}]
    filter: {disabled: [{name: VolumeZone}]}
    postFilter: {disabled: [{name: "*"}]}
- schedulerName: packer
  percentageOfNodesToScore: 100
  plugins:
    multiPoint:
      disabled: [{name: "*"}]
      enabled: [{name: NodeResourcesFit, weight: 5}, {name: TaintToleration}, {name: DefaultPreemption}]
  pluginConfig:
  - name: NodeResourcesFit
    args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: NodeResourcesFitArgs, scoringStrategy: {type: MostAllocated}}
  - name: VolumeBinding
    args: {bindTimeoutSeconds: 30}
  - name: DefaultPreemption
    args: {minCandidateNodesPercentage: 20, minCandidateNodesAbsolute: 7}
`)
	if s.Binders != 8 || s.Backoff != 2*time.Second || s.MaxBackoff != 20*time.Second || s.VolumeWait != 30*time.Second || len(s.Profiles) != 2 {
		t.Errorf("settings %+v", s)
	}
	first, second := s.Profiles[0], s.Profiles[1]
	if w := weights(first); w["ImageLocality"] != 0 || w["InterPodAffinity"] != 7 || w["TaintToleration"] != 3 {
		t.Errorf("weights %v", w)
	}
	if slices.Contains(filterNames(first), "VolumeZone") || len(first.Filters) != len(rules.Filters())-1 || !first.Preemption.Off || first.Percentage != 30 {
		t.Errorf("the first profile is %v, preemption %+v, %d %%", filterNames(first), first.Preemption, first.Percentage)
	}
	if got := filterNames(second); !slices.Equal(got, []string{"TaintToleration", "NodeResourcesFit"}) || second.Percentage != 100 {
		t.Errorf("the second profile has %v, %d %%", got, second.Percentage)
	}
	if w := weights(second); len(w) != 2 || w["NodeResourcesFit"] != 5 || w["TaintToleration"] != 1 {
		t.Errorf("the second profile has weights %v", w)
	}
	if want := (profile.Preemption{Percent: 20, Absolute: 7}); second.Preemption != want {
		t.Errorf("preemption %+v, want %+v", second.Preemption, want)
	}
}

func TestPolicy(t *testing.T) {
	p := parse(t, `{"kind": "Policy", "apiVersion": "v1",
		"predicates": [{"name": "PodFitsResources"}, {"name": "PodFitsHost"}, {"name": "PodMatchNodeSelector"}],
		"priorities": [{"name": "LeastRequestedPriority", "weight": 1}, {"name": "BalancedResourceAllocation", "weight": 2}, {"name": "EqualPriority", "weight": 1}]}`).Profiles[0]
	if got, want := filterNames(p), []string{"NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodeResourcesFit", "DynamicResources"}; !slices.Equal(got, want) {
		t.Errorf("filters %v, want %v", got, want)
	}
	if w := weights(p); len(w) != 2 || w["NodeResourcesFit"] != 1 || w["NodeResourcesBalancedAllocation"] != 2 {
		t.Errorf("weights %v", w)
	}
	p = parse(t, `{"kind": "Policy", "apiVersion": "v1"}`).Profiles[0]
	if len(p.Filters) != len(rules.Filters()) || len(p.Scores) != len(rules.Scores()) {
		t.Errorf("an empty policy leaves %d filters and %d scores", len(p.Filters), len(p.Scores))
	}
}

func TestWhatHasNoMeaningIsRefused(t *testing.T) {
	one := func(text string) string { return head + "profiles:\n- " + text + "\n" }
	for text, want := range map[string]string{
		"kind: Pod\napiVersion: v1\n":                                                                              "give a KubeSchedulerConfiguration",
		head + "colour: red\n":                                                                                     "unknown field",
		head + "leaderElection: {leaderElect: true}\n":                                                             "leaderElection",
		head + "clientConnection: {qps: 5}\n":                                                                      "clientConnection",
		head + "extenders: [{urlPrefix: 'http://x'}]\n":                                                            "extenders",
		head + "percentageOfNodesToScore: 101\n":                                                                   "0 to 100",
		one("plugins: {score: {enabled: [{name: Nothing}]}}"):                                                      "there is no score Nothing",
		one("plugins: {queueSort: {enabled: [{name: Mine}]}}"):                                                     "queueSort",
		one("plugins: {multiPoint: {disabled: [{name: '*'}]}}"):                                                    "without any filter",
		one("pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: Best}}}]"):                     "there is no type Best",
		one("pluginConfig: [{name: NodeResourcesFit, args: {colour: red}}]"):                                       "unknown field",
		one("pluginConfig: [{name: ImageLocality, args: {}}]"):                                                     "takes no args",
		one("pluginConfig: [{name: PodTopologySpread, args: {defaultConstraints: [{maxSkew: 1}]}}]"):               "defaultingType List",
		one("pluginConfig: [{name: VolumeBinding, args: {shape: [{utilization: 1, score: 1}]}}]"):                  "shape",
		one("schedulerName: a\n- schedulerName: a"):                                                                "has another profile already",
		`{"kind": "Policy", "apiVersion": "v1", "predicates": [{"name": "Mine", "argument": {}}]}`:                 "no predicate Mine",
		`{"kind": "Policy", "apiVersion": "v1", "priorities": [{"name": "ImageLocalityPriority"}]}`:                "weight must be 1 to 100",
		`{"kind": "Policy", "apiVersion": "v1", "extenders": [{"urlPrefix": "http://x"}]}`:                         "extenders",
		`{"kind": "Policy", "apiVersion": "v1", "alwaysCheckAllPredicates": true}`:                                 "alwaysCheckAllPredicates",
		one("pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: RequestedToCapacityRatio}}}]"): "needs a shape",
	} {
		if _, err := profile.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngives %v, want %q", text, err, want)
		}
	}
}

// TestStrategies has each strategy's scores of a resource, by the percent in use.
func TestStrategies(t *testing.T) {
	bend := rules.Ratio([]rules.Point{{Utilization: 20, Score: 0}, {Utilization: 60, Score: 10}, {Utilization: 100, Score: 5}})
	for _, c := range []struct {
		name     string
		strategy rules.Strategy
		want     map[int64]int64
	}{
		{"least", rules.Least, map[int64]int64{0: 100, 25: 75, 100: 0}},
		{"most", rules.Most, map[int64]int64{0: 0, 25: 25, 100: 100}},
		{"ratio", bend, map[int64]int64{0: 0, 20: 0, 40: 50, 60: 100, 80: 75, 100: 50}},
		{"flat", rules.Ratio([]rules.Point{{Utilization: 50, Score: 3}}), map[int64]int64{0: 30, 50: 30, 100: 30}},
	} {
		for used, want := range c.want {
			if got := c.strategy(used, 100); got != want {
				t.Errorf("%s at %d %% gives %d, want %d", c.name, used, got, want)
			}
		}
	}
}

// TestAnyShapeStaysInBounds: no shape that Parse accepts leads to a score outside 0…MaxScore.
func TestAnyShapeStaysInBounds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		var points []rules.Point
		for at := random.Int64N(30); at <= 100; at += 1 + random.Int64N(40) {
			points = append(points, rules.Point{Utilization: at, Score: random.Int64N(11)})
		}
		ratio := rules.Ratio(points)
		for used := range int64(1001) {
			if got := ratio(used, 1000); got < 0 || got > rules.MaxScore {
				t.Fatalf("%v at %d of 1000 gives %d", points, used, got)
			}
		}
	}
}
