package horizontalpodautoscaler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	autoscalinglisters "k8s.io/client-go/listers/autoscaling/v2"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/balsahq/balsa/leader/scaling"
	"github.com/balsahq/balsa/leader/workqueue"
)

// reader reads metrics; source is one.
type reader interface {
	read(ctx context.Context, namespace string, selector labels.Selector, m autoscalingv2.MetricSpec) reading
}

// scaler reads and writes scales; scaling.Client is one.
type scaler interface {
	Get(ctx context.Context, namespace, apiVersion, kind, name string) (*autoscalingv1.Scale, schema.GroupResource, error)
	Update(ctx context.Context, r schema.GroupResource, s *autoscalingv1.Scale) error
}

type controller struct {
	env         workqueue.Env
	cfg         Config
	autoscalers autoscalinglisters.HorizontalPodAutoscalerLister
	pods        corelisters.PodLister
	scales      scaler
	metrics     reader
	loop        *workqueue.Loop[workqueue.Key]

	mu        sync.Mutex
	memories  map[workqueue.Key]memory
	selectors map[string]map[string]labels.Selector // of targets, by namespace and name of the autoscaler
}

// New returns the controller of HorizontalPodAutoscalers.
func New(env workqueue.Env, workers int, cfg Config) (workqueue.Runner, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	scales, err := scaling.New(env.Rest)
	if err != nil {
		return nil, err
	}
	metrics, err := newSource(env.Rest, scales.Mapper())
	if err != nil {
		return nil, err
	}
	return newController(env, workers, &controller{cfg: cfg, scales: scales, metrics: metrics})
}

func newController(env workqueue.Env, workers int, c *controller) (workqueue.Runner, error) {
	autoscalers, pods := env.Informers.Autoscaling().V2().HorizontalPodAutoscalers(), env.Informers.Core().V1().Pods()
	c.env, c.autoscalers, c.pods = env, autoscalers.Lister(), pods.Lister()
	c.memories, c.selectors = map[workqueue.Key]memory{}, map[string]map[string]labels.Selector{}
	registerMetrics()
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	workqueue.Need(c.loop, pods.Informer())
	return c.loop, workqueue.Watch(c.loop, autoscalers.Informer(), func(old, now *autoscalingv2.HorizontalPodAutoscaler) {
		if old == nil || now == nil || !equality.Semantic.DeepEqual(old.Spec, now.Spec) { // its status is written here
			c.loop.Add(workqueue.KeyOf(workqueue.Newest(old, now)))
		}
	})
}

func (c *controller) reconcile(ctx context.Context, key workqueue.Key) error {
	hpa, err := c.autoscalers.HorizontalPodAutoscalers(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.forget(key)
		return nil
	}
	if err != nil {
		return err
	}
	in := &input{hpa: hpa, cfg: c.cfg, now: time.Now(), memory: c.remembered(key)}
	out, err := c.carryOut(ctx, in)
	counted(in.replicas, out.replicas, in.now, err)
	if err != nil {
		return err
	}
	c.remember(key, out.memory)
	for _, e := range out.events {
		c.env.Events.Event(reference(hpa), e.kind, e.reason, e.message)
	}
	if err := c.write(ctx, hpa, out.status); err != nil {
		return err
	}
	c.loop.AddAfter(key, c.cfg.SyncPeriod)
	return nil
}

// carryOut reads what a decision needs, decides and scales. An error is worth another attempt at once; what only time can
// mend is part of the outcome.
func (c *controller) carryOut(ctx context.Context, in *input) (outcome, error) {
	target := in.hpa.Spec.ScaleTargetRef
	scale, resource, err := c.scales.Get(ctx, in.hpa.Namespace, target.APIVersion, target.Kind, target.Name)
	if err != nil {
		return in.unreadable(err), nil
	}
	in.replicas, in.running, in.selector = scale.Spec.Replicas, scale.Status.Replicas, scale.Status.Selector
	if _, _, ok := in.bounded(); !ok {
		if err := c.readPods(ctx, in); err != nil {
			return outcome{}, err
		}
	}
	out := in.decide()
	if out.replicas == in.replicas {
		return out, nil
	}
	scale.Spec.Replicas = out.replicas
	switch err := c.scales.Update(ctx, resource, scale); {
	case apierrors.IsConflict(err):
		return outcome{}, err // the next attempt reads the scale that the other writer made
	case err != nil:
		return in.stuck(out, err), nil
	}
	return in.rescaled(out), nil
}

// readPods reads the target's pods and their metrics.
func (c *controller) readPods(ctx context.Context, in *input) error {
	if in.selector == "" {
		in.fault = &fault{"SelectorRequired", "InvalidSelector", "selector is required", "the HPA target's scale is missing a selector"}
		return nil
	}
	selector, err := labels.Parse(in.selector)
	if err != nil {
		text := fmt.Sprintf("couldn't convert selector into a corresponding internal selector object: %v", err)
		in.fault = &fault{"InvalidSelector", "InvalidSelector", text, text}
		return nil
	}
	if in.pods, err = c.pods.Pods(in.hpa.Namespace).List(selector); err != nil {
		return err
	}
	if all := c.selecting(in.hpa, selector, in.pods); len(all) > 1 {
		text := fmt.Sprintf("pods by selector %s are controlled by multiple HPAs: %v", in.selector, all)
		in.fault = &fault{"AmbiguousSelector", "AmbiguousSelector", text, text}
		return nil
	}
	for _, m := range in.hpa.Spec.Metrics {
		in.readings = append(in.readings, c.metrics.read(ctx, in.hpa.Namespace, selector, m))
	}
	return ctx.Err()
}

// selecting notes an autoscaler's selector and returns which autoscalers of its namespace select one of the pods. It looks
// at all of the namespace: pods of one target match one selector, so that each other is one comparison for most.
func (c *controller) selecting(hpa *autoscalingv2.HorizontalPodAutoscaler, selector labels.Selector, pods []*v1.Pod) (keys []workqueue.Key) {
	c.mu.Lock()
	if c.selectors[hpa.Namespace] == nil {
		c.selectors[hpa.Namespace] = map[string]labels.Selector{}
	}
	c.selectors[hpa.Namespace][hpa.Name] = selector
	for name, other := range c.selectors[hpa.Namespace] {
		if slices.ContainsFunc(pods, func(p *v1.Pod) bool { return other.Matches(labels.Set(p.Labels)) }) {
			keys = append(keys, workqueue.Key{Namespace: hpa.Namespace, Name: name})
		}
	}
	c.mu.Unlock()
	slices.SortFunc(keys, func(a, b workqueue.Key) int { return cmp.Compare(a.Name, b.Name) })
	return keys
}

func (c *controller) remembered(key workqueue.Key) memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.memories[key]
}

func (c *controller) remember(key workqueue.Key, m memory) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.memories[key] = m
}

// forget drops what is remembered of an autoscaler that is gone.
func (c *controller) forget(key workqueue.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.memories, key)
	if delete(c.selectors[key.Namespace], key.Name); len(c.selectors[key.Namespace]) == 0 {
		delete(c.selectors, key.Namespace)
	}
}

func (c *controller) write(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, status autoscalingv2.HorizontalPodAutoscalerStatus) error {
	if equality.Semantic.DeepEqual(hpa.Status, status) {
		return nil
	}
	now := hpa.DeepCopy()
	now.Status = status
	_, err := c.env.Client.AutoscalingV2().HorizontalPodAutoscalers(hpa.Namespace).UpdateStatus(ctx, now, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("failed to update status for %s: %w", hpa.Name, err)
	}
	return nil
}

func reference(hpa *autoscalingv2.HorizontalPodAutoscaler) *v1.ObjectReference {
	return &v1.ObjectReference{
		APIVersion: autoscalingv2.SchemeGroupVersion.String(), Kind: "HorizontalPodAutoscaler", Namespace: hpa.Namespace, Name: hpa.Name,
		UID: hpa.UID, ResourceVersion: hpa.ResourceVersion,
	}
}
