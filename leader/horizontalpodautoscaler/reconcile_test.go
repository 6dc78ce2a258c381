package horizontalpodautoscaler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// pod is one that has been ready for an hour and requests one processor, as changes make it.
func pod(name string, changes ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("1"), v1.ResourceMemory: resource.MustParse("100Mi"),
		}}}}},
		Status: v1.PodStatus{
			Phase: v1.PodRunning, StartTime: ptr.To(metav1.NewTime(now.Add(-time.Hour))),
			Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}},
		},
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

// started makes a pod that began to run so long ago, and became ready or unready so long ago.
func started(ago time.Duration, ready v1.ConditionStatus, since time.Duration) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Status.StartTime = ptr.To(metav1.NewTime(now.Add(-ago)))
		p.Status.Conditions[0].Status, p.Status.Conditions[0].LastTransitionTime = ready, metav1.NewTime(now.Add(-since))
	}
}

func pending(p *v1.Pod) { p.Status.Phase = v1.PodPending }
func failed(p *v1.Pod)  { p.Status.Phase = v1.PodFailed }
func ending(p *v1.Pod)  { p.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }

// web are n pods, web-0 and so on.
func web(n int) (list []*v1.Pod) {
	for i := range n {
		list = append(list, pod(fmt.Sprintf("web-%d", i)))
	}
	return list
}

// using are samples of pods web-0 and so on, in thousandths, measured in the last 15 s.
func using(values ...int64) reading {
	s := samples{}
	for i, v := range values {
		s[fmt.Sprintf("web-%d", i)] = sample{value: v, at: now, window: 15 * time.Second}
	}
	return reading{pods: s}
}

func cpu(percent int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
		Name: v1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent},
	}}
}

func average(q string) autoscalingv2.MetricTarget {
	return autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: ptr.To(resource.MustParse(q))}
}

func value(q string) autoscalingv2.MetricTarget {
	return autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: ptr.To(resource.MustParse(q))}
}

func external(target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "queue"}, Target: target,
	}}
}

func object(target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
		DescribedObject: autoscalingv2.CrossVersionObjectReference{Kind: "Ingress", Name: "main"}, Metric: autoscalingv2.MetricIdentifier{Name: "hits"}, Target: target,
	}}
}

func hpa(least, most int32, metrics ...autoscalingv2.MetricSpec) *autoscalingv2.HorizontalPodAutoscaler {
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			MinReplicas:    &least, MaxReplicas: most, Metrics: metrics,
		},
	}
}

// at is the input of an autoscaler whose target has as many replicas as it is to have, and was last looked at long ago.
func at(replicas int32, h *autoscalingv2.HorizontalPodAutoscaler, pods []*v1.Pod, readings ...reading) *input {
	return &input{
		hpa: h, replicas: replicas, running: replicas, cfg: DefaultConfig(), now: now, pods: pods, readings: readings,
		memory: memory{recommendations: []recommendation{{now.Add(-time.Hour), replicas}}},
	}
}

func condition(out outcome, kind autoscalingv2.HorizontalPodAutoscalerConditionType) string {
	for _, c := range out.status.Conditions {
		if c.Type == kind {
			return fmt.Sprintf("%s %s", c.Status, c.Reason)
		}
	}
	return ""
}

func TestReplicasFollowMetricsAsUpstream(t *testing.T) {
	cpu50, unknown := cpu(50), reading{err: errors.New("no answer")}
	container := autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
		Name: v1.ResourceCPU, Container: "a", Target: autoscalingv2.MetricTarget{AverageUtilization: ptr.To(int32(50))},
	}}
	perPod := autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "hits"}, Target: average("100"),
	}}
	memoryValue := autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: v1.ResourceMemory, Target: average("50Mi")}}
	with := func(more ...*v1.Pod) []*v1.Pod { return append(web(2), more...) }
	tolerant := hpa(1, 10, cpu50)
	tolerant.Spec.Behavior = behavior(0, 0)
	tolerant.Spec.Behavior.ScaleUp.Tolerance = ptr.To(resource.MustParse("0.5"))
	twoContainers := pod("web-0")
	twoContainers.Spec.Containers = append(twoContainers.Spec.Containers, v1.Container{Name: "b"})
	wholePod := pod("web-0", func(p *v1.Pod) {
		p.Spec.Containers[0].Resources = v1.ResourceRequirements{}
		p.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m")}}
	})
	for name, c := range map[string]struct {
		in     *input
		want   int32
		active string // the condition ScalingActive, where it is not ValidMetricFound
		metric string // what the status says of the first metric
	}{
		"as much as wanted":                      {in: at(2, hpa(1, 10, cpu50), web(2), using(500, 500)), want: 2, metric: "50% 500m"},
		"within the tolerance":                   {in: at(2, hpa(1, 10, cpu50), web(2), using(540, 550)), want: 2, metric: "54% 545m"},
		"twice as much":                          {in: at(2, hpa(1, 10, cpu50), web(2), using(900, 1100)), want: 4},
		"rounded up":                             {in: at(2, hpa(1, 10, cpu50), web(2), using(600, 600)), want: 3},
		"half as much":                           {in: at(4, hpa(1, 10, cpu50), web(4), using(250, 250, 250, 250)), want: 2},
		"idle":                                   {in: at(4, hpa(1, 10, cpu50), web(4), using(0, 0, 0, 0)), want: 1},
		"a tolerance of its own":                 {in: at(2, tolerant, web(2), using(740, 740)), want: 2},
		"more than that tolerance":               {in: at(2, tolerant, web(2), using(760, 760)), want: 4},
		"a pod without samples, scaling up":      {in: at(3, hpa(1, 10, cpu50), web(3), using(1000, 1000)), want: 4},
		"a pod without samples, little too much": {in: at(3, hpa(1, 10, cpu50), web(3), using(600, 600)), want: 3},
		"a pod without samples, scaling down":    {in: at(3, hpa(1, 10, cpu50), web(3), using(100, 100)), want: 3},
		"many pods, one without samples, idle":   {in: at(8, hpa(1, 10, cpu50), web(8), using(0, 0, 0, 0, 0, 0, 0)), want: 2},
		"a pod that is pending, scaling up":      {in: at(3, hpa(1, 10, cpu50), with(pod("web-2", pending)), using(1000, 1000)), want: 4},
		"a pod that is pending, scaling down":    {in: at(3, hpa(1, 10, cpu50), with(pod("web-2", pending)), using(100, 100)), want: 1},
		"a pod that ends counts for nothing":     {in: at(2, hpa(1, 10, cpu50), with(pod("web-2", ending)), using(900, 1100, 5000)), want: 4},
		"a pod that has failed, too":             {in: at(2, hpa(1, 10, cpu50), with(pod("web-2", failed)), using(900, 1100, 5000)), want: 4},
		"a pod that starts and is not ready":     {in: at(3, hpa(1, 10, cpu50), with(pod("web-2", started(time.Minute, v1.ConditionFalse, time.Minute))), using(500, 500, 5000)), want: 3},
		"ready for less than a window":           {in: at(3, hpa(1, 10, cpu50), with(pod("web-2", started(time.Minute, v1.ConditionTrue, 10*time.Second))), using(500, 500, 5000)), want: 3},
		"ready for a window":                     {in: at(3, hpa(1, 10, cpu50), with(pod("web-2", started(time.Minute, v1.ConditionTrue, 15*time.Second))), using(500, 500, 1000)), want: 4},
		"never ready, old":                       {in: at(3, hpa(1, 10, cpu50), with(pod("web-2", started(time.Hour, v1.ConditionFalse, time.Hour-10*time.Second))), using(500, 500, 5000)), want: 3},
		"was ready, old":                         {in: at(3, hpa(1, 10, cpu50), with(pod("web-2", started(time.Hour, v1.ConditionFalse, time.Minute))), using(500, 500, 1000)), want: 4},
		"nothing counts":                         {in: at(2, hpa(1, 10, cpu50), []*v1.Pod{pod("web-0", pending)}, using(500)), want: 2, active: "False FailedGetResourceMetric"},
		"no pods":                                {in: at(2, hpa(1, 10, cpu50), nil, using(500)), want: 2, active: "False FailedGetResourceMetric"},
		"a request is missing":                   {in: at(1, hpa(1, 10, cpu50), []*v1.Pod{twoContainers}, using(500)), want: 1, active: "False FailedGetResourceMetric"},
		"a request of the whole pod":             {in: at(1, hpa(1, 10, cpu50), []*v1.Pod{wholePod}, using(500)), want: 2},
		"a container's request":                  {in: at(1, hpa(1, 10, container), []*v1.Pod{twoContainers}, using(1000)), want: 2, metric: "100% 1"},
		"metrics that cannot be read":            {in: at(2, hpa(1, 10, cpu50), web(2), unknown), want: 2, active: "False FailedGetResourceMetric"},
		"a value of each pod":                    {in: at(2, hpa(1, 10, perPod), web(2), using(150_000, 250_000)), want: 4, metric: "200"},
		"memory, by value":                       {in: at(2, hpa(1, 10, memoryValue), web(2), using(75<<20*1000, 75<<20*1000)), want: 3, metric: "75Mi"},
		"the metric that asks for most":          {in: at(2, hpa(1, 10, cpu50, perPod), web(2), using(250, 250), using(150_000, 150_000)), want: 3},
		"one of two is unknown, scaling up":      {in: at(2, hpa(1, 10, cpu50, perPod), web(2), unknown, using(150_000, 150_000)), want: 3},
		"one of two is unknown, scaling down":    {in: at(4, hpa(1, 10, cpu50, perPod), web(4), unknown, using(0, 0, 0, 0)), want: 4, active: "False FailedGetResourceMetric"},
		"a value of an object":                   {in: at(2, hpa(1, 10, object(value("10"))), web(2), reading{values: []int64{20_000}}), want: 4, metric: "20"},
		"a value of an object, by pods":          {in: at(2, hpa(1, 10, object(average("10"))), web(2), reading{values: []int64{40_000}}), want: 4, metric: "20"},
		"external values":                        {in: at(2, hpa(1, 10, external(value("10"))), web(2), reading{values: []int64{10_000, 5_000}}), want: 3, metric: "15"},
		"external values, by pods":               {in: at(2, hpa(1, 10, external(average("10"))), web(2), reading{values: []int64{10_000, 25_000}}), want: 4, metric: "17500m"},
		"an external value that is huge":         {in: at(2, hpa(1, 10, external(average("1m"))), web(2), reading{values: []int64{1 << 62, 1 << 62, 1 << 62}}), want: 4},
		"external metrics that cannot be read":   {in: at(2, hpa(1, 10, external(value("10"))), web(2), unknown), want: 2, active: "False FailedGetExternalMetric"},
		"no more than the most":                  {in: at(2, hpa(1, 3, cpu50), web(2), using(1000, 1000)), want: 3},
		"no less than the least":                 {in: at(4, hpa(3, 10, cpu50), web(4), using(0, 0, 0, 0)), want: 3},
		"above the most":                         {in: at(12, hpa(1, 10, cpu50), nil), want: 10, active: "-"},
		"below the least":                        {in: at(1, hpa(2, 10, cpu50), nil), want: 2, active: "-"},
		"switched off":                           {in: at(0, hpa(1, 10, cpu50), nil), want: 0, active: "False ScalingDisabled"},
	} {
		t.Run(name, func(t *testing.T) {
			out := c.in.decide()
			if out.replicas != c.want {
				t.Errorf("%d replicas, want %d; %v", out.replicas, c.want, out.events)
			}
			active := condition(out, autoscalingv2.ScalingActive)
			if want := map[string]string{"": "True ValidMetricFound", "-": ""}; active != c.active && active != want[c.active] {
				t.Errorf("ScalingActive %s", active)
			}
			if got := shown(out.status); c.metric != "" && got != c.metric {
				t.Errorf("the metric is %s, want %s", got, c.metric)
			}
		})
	}
}

// shown is what the status says of the first metric.
func shown(s autoscalingv2.HorizontalPodAutoscalerStatus) string {
	if len(s.CurrentMetrics) == 0 {
		return ""
	}
	var now autoscalingv2.MetricValueStatus
	switch m := s.CurrentMetrics[0]; m.Type {
	case autoscalingv2.ResourceMetricSourceType:
		now = m.Resource.Current
	case autoscalingv2.ContainerResourceMetricSourceType:
		now = m.ContainerResource.Current
	case autoscalingv2.PodsMetricSourceType:
		now = m.Pods.Current
	case autoscalingv2.ObjectMetricSourceType:
		now = m.Object.Current
	case autoscalingv2.ExternalMetricSourceType:
		now = m.External.Current
	}
	var parts []string
	if now.AverageUtilization != nil {
		parts = append(parts, fmt.Sprintf("%d%%", *now.AverageUtilization))
	}
	for _, q := range []*resource.Quantity{now.AverageValue, now.Value} {
		if q != nil {
			parts = append(parts, q.String())
		}
	}
	return strings.Join(parts, " ")
}

// behavior has upstream's default policies and these windows, in seconds.
func behavior(up, down int32) *autoscalingv2.HorizontalPodAutoscalerBehavior {
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &up, SelectPolicy: ptr.To(autoscalingv2.MaxChangePolicySelect), Policies: []autoscalingv2.HPAScalingPolicy{
			{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15}, {Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
		}},
		ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &down, SelectPolicy: ptr.To(autoscalingv2.MaxChangePolicySelect), Policies: []autoscalingv2.HPAScalingPolicy{
			{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
		}},
	}
}

func TestChangesAreStabilizedAndLimited(t *testing.T) {
	ago := func(s int, n int32) recommendation {
		return recommendation{now.Add(-time.Duration(s) * time.Second), n}
	}
	rates := func(b *autoscalingv2.HorizontalPodAutoscalerBehavior, up, down *autoscalingv2.HPAScalingPolicy, selected autoscalingv2.ScalingPolicySelect) *autoscalingv2.HorizontalPodAutoscalerBehavior {
		for rules, p := range map[*autoscalingv2.HPAScalingRules]*autoscalingv2.HPAScalingPolicy{b.ScaleUp: up, b.ScaleDown: down} {
			if p != nil {
				rules.Policies = []autoscalingv2.HPAScalingPolicy{*p}
			}
			rules.SelectPolicy = &selected
		}
		return b
	}
	const largest, smallest, disabled = autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect, autoscalingv2.DisabledPolicySelect
	onePod := &autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: 1, PeriodSeconds: 60}
	tenth := &autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: 10, PeriodSeconds: 60}
	for name, c := range map[string]struct {
		current, desired, want int32
		behavior               *autoscalingv2.HorizontalPodAutoscalerBehavior
		memory                 memory
		stable, limited        string // reasons of AbleToScale and ScalingLimited; "" as it was asked for
	}{
		"five minutes before scaling down":            {current: 5, desired: 2, want: 5, memory: memory{recommendations: []recommendation{ago(299, 5)}}, stable: "ScaleDownStabilized"},
		"after five minutes":                          {current: 5, desired: 2, want: 2, memory: memory{recommendations: []recommendation{ago(301, 5)}}},
		"the highest of the window":                   {current: 5, desired: 2, want: 4, memory: memory{recommendations: []recommendation{ago(301, 5), ago(200, 3), ago(100, 4)}}, stable: "ScaleDownStabilized"},
		"twice as many at most":                       {current: 5, desired: 50, want: 10, limited: "ScaleUpLimit"},
		"four in any case":                            {current: 1, desired: 50, want: 4, limited: "ScaleUpLimit"},
		"no more than the most":                       {current: 15, desired: 50, want: 20, limited: "TooManyReplicas"},
		"no less than the least":                      {current: 3, desired: 0, want: 1, limited: "TooFewReplicas"},
		"a window of its own":                         {current: 5, desired: 2, want: 2, behavior: behavior(0, 10), memory: memory{recommendations: []recommendation{ago(11, 5)}}},
		"within it":                                   {current: 5, desired: 2, want: 5, behavior: behavior(0, 10), memory: memory{recommendations: []recommendation{ago(9, 5)}}, stable: "ScaleDownStabilized"},
		"a window for scaling up":                     {current: 5, desired: 9, want: 6, behavior: behavior(60, 0), memory: memory{recommendations: []recommendation{ago(59, 6)}}, stable: "ScaleUpStabilized"},
		"after it":                                    {current: 5, desired: 9, want: 9, behavior: behavior(60, 0), memory: memory{recommendations: []recommendation{ago(61, 6)}}},
		"default policies":                            {current: 2, desired: 20, want: 6, behavior: behavior(0, 0), limited: "ScaleUpLimit"},
		"the smallest change":                         {current: 2, desired: 20, want: 4, behavior: rates(behavior(0, 0), nil, nil, smallest), limited: "ScaleUpLimit"},
		"one pod a minute":                            {current: 5, desired: 9, want: 6, behavior: rates(behavior(0, 0), onePod, nil, largest), limited: "ScaleUpLimit"},
		"one pod a minute, and there was one":         {current: 6, desired: 9, want: 6, behavior: rates(behavior(0, 0), onePod, nil, largest), memory: memory{ups: []change{{now.Add(-59 * time.Second), 1}}}, limited: "ScaleUpLimit"},
		"one pod a minute, and it was before":         {current: 6, desired: 9, want: 7, behavior: rates(behavior(0, 0), onePod, nil, largest), memory: memory{ups: []change{{now.Add(-61 * time.Second), 1}}}, limited: "ScaleUpLimit"},
		"one pod less a minute":                       {current: 5, desired: 1, want: 4, behavior: rates(behavior(0, 0), nil, onePod, largest), limited: "ScaleDownLimit"},
		"a tenth, rounded towards change, up":         {current: 5, desired: 9, want: 6, behavior: rates(behavior(0, 0), tenth, nil, largest), limited: "ScaleUpLimit"},
		"a tenth, rounded towards change, down":       {current: 5, desired: 1, want: 4, behavior: rates(behavior(0, 0), nil, tenth, largest), limited: "ScaleDownLimit"},
		"a tenth of those that there were":            {current: 18, desired: 1, want: 18, behavior: rates(behavior(0, 0), nil, tenth, largest), memory: memory{downs: []change{{now.Add(-time.Second), 2}}}, limited: "ScaleDownLimit"},
		"never down":                                  {current: 5, desired: 1, want: 5, behavior: rates(behavior(0, 0), nil, nil, disabled), limited: "ScaleDownLimit"},
		"never up":                                    {current: 5, desired: 9, want: 5, behavior: rates(behavior(0, 0), nil, nil, disabled), limited: "ScaleUpLimit"},
		"least wins over policies that allow no less": {current: 2, desired: 0, want: 1, behavior: behavior(0, 0), limited: "TooFewReplicas"},
	} {
		t.Run(name, func(t *testing.T) {
			h := hpa(1, 20)
			h.Spec.Behavior = c.behavior
			in := &input{hpa: h, replicas: c.current, running: c.current, cfg: DefaultConfig(), now: now}
			out := outcome{memory: c.memory}
			in.fit(&out, c.desired)
			if out.replicas != c.want {
				t.Errorf("%d replicas, want %d", out.replicas, c.want)
			}
			able, limited := "True ReadyForNewScale", "False DesiredWithinRange"
			if c.stable != "" {
				able = "True " + c.stable
			}
			if c.limited != "" {
				limited = "True " + c.limited
			}
			if a, l := condition(out, autoscalingv2.AbleToScale), condition(out, autoscalingv2.ScalingLimited); a != able || l != limited {
				t.Errorf("AbleToScale %s, ScalingLimited %s; want %s, %s", a, l, able, limited)
			}
		})
	}
}

func TestAnAutoscalerThatIsMetForTheFirstTimeScalesNothingDownBeforeItsWindow(t *testing.T) {
	in := at(5, hpa(1, 10, cpu(50)), web(5), using(0, 0, 0, 0, 0))
	in.memory = memory{}
	out := in.decide()
	if out.replicas != 5 || condition(out, autoscalingv2.AbleToScale) != "True ScaleDownStabilized" {
		t.Fatalf("%d replicas, %s", out.replicas, condition(out, autoscalingv2.AbleToScale))
	}
	in.memory, in.now = out.memory, now.Add(5*time.Minute+time.Second)
	if out := in.decide(); out.replicas != 1 {
		t.Errorf("%d replicas after the window", out.replicas)
	}
}

func TestMemoryIsBoundedByTheWindows(t *testing.T) {
	in := at(5, hpa(1, 10, cpu(50)), web(5), using(500, 500, 500, 500, 500))
	in.hpa.Spec.Behavior = behavior(0, 3600)
	for range 2000 {
		in.memory = in.decide().memory.scaled(5, 6, in.hpa.Spec.Behavior, in.now)
		in.now = in.now.Add(15 * time.Second)
	}
	if n := len(in.memory.recommendations); n > 242 {
		t.Errorf("%d recommendations of an hour are kept", n)
	}
	if n := len(in.memory.ups); n > 3 {
		t.Errorf("%d changes of 15 s are kept", n)
	}
}

func TestWhatPeopleAreTold(t *testing.T) {
	in := at(2, hpa(1, 10, cpu(50)), web(2), using(1000, 1000))
	in.hpa.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{
		{Type: autoscalingv2.AbleToScale, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}, {Type: autoscalingv2.ScaledToZero, Status: v1.ConditionFalse},
	}
	decided := in.decide()
	out := in.rescaled(decided)
	if want := []event{{"Normal", "SuccessfulRescale", "New size: 4; reason: cpu resource utilization (percentage of request) above target"}}; !slices.Equal(out.events, want) {
		t.Errorf("%v", out.events)
	}
	if s := out.status; s.DesiredReplicas != 4 || s.CurrentReplicas != 2 || s.LastScaleTime == nil || !s.LastScaleTime.Time.Equal(now) || len(s.Conditions) != 3 ||
		condition(out, autoscalingv2.AbleToScale) != "True SucceededRescale" || !s.Conditions[0].LastTransitionTime.Time.Equal(now.Add(-time.Hour)) {
		t.Errorf("%+v", s)
	}
	out = in.stuck(decided, errors.New("no"))
	if len(out.events) != 1 || out.events[0].reason != "FailedRescale" || condition(out, autoscalingv2.AbleToScale) != "False FailedUpdateScale" || out.status.LastScaleTime != nil {
		t.Errorf("%v, %+v", out.events, out.status)
	}
	in.readings = []reading{{err: errors.New("unable to fetch metrics from resource metrics API: no")}}
	out = in.decide()
	why := "failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch metrics from resource metrics API: no"
	if want := []event{
		{"Warning", "FailedGetResourceMetric", why},
		{"Warning", "FailedComputeMetricsReplicas", "invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: " + why},
	}; !slices.Equal(out.events, want) {
		t.Errorf("%v", out.events)
	}
	if out = in.unreadable(errors.New("not found")); condition(out, autoscalingv2.AbleToScale) != "False FailedGetScale" || out.events[0].reason != "FailedGetScale" {
		t.Errorf("%+v", out)
	}
}

func TestConfigReportsEveryFaultAtOnce(t *testing.T) {
	err := Config{Tolerance: 2, DownscaleStabilization: -1}.Validate()
	for _, want := range []string{"sync-period", "downscale-stabilization", "tolerance"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not in %v", want, err)
		}
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
}
