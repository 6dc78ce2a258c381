package horizontalpodautoscaler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

// target is a Deployment's scale that anybody may read and write.
type target struct {
	mu       sync.Mutex
	replicas int32
	selector string
	fails    []error // of the next updates
	asked    []string
}

// Get implements scaler.
func (s *target) Get(_ context.Context, namespace, apiVersion, kind, name string) (*autoscalingv1.Scale, schema.GroupResource, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, fmt.Sprintf("%s %s %s/%s", apiVersion, kind, namespace, name))
	return &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: autoscalingv1.ScaleSpec{Replicas: s.replicas},
		Status: autoscalingv1.ScaleStatus{Replicas: s.replicas, Selector: s.selector},
	}, schema.GroupResource{Group: "apps", Resource: "deployments"}, nil
}

// Update implements scaler.
func (s *target) Update(_ context.Context, _ schema.GroupResource, scale *autoscalingv1.Scale) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.fails) > 0 {
		err := s.fails[0]
		s.fails = s.fails[1:]
		return err
	}
	s.replicas = scale.Spec.Replicas
	return nil
}

func (s *target) now() int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replicas
}

// constant reads the same whatever is asked for.
type constant reading

func (r constant) read(context.Context, string, labels.Selector, autoscalingv2.MetricSpec) reading {
	return reading(r)
}

// running is the controller over an API with these autoscalers and the pods web-0 and web-1.
func running(t *testing.T, s *target, r reading, autoscalers ...*autoscalingv2.HorizontalPodAutoscaler) (*fake.Clientset, <-chan string) {
	t.Helper()
	var objects []runtime.Object
	for _, p := range web(2) {
		p.Namespace = "ns"
		objects = append(objects, p)
	}
	for _, h := range autoscalers {
		objects = append(objects, h)
	}
	client := fake.NewClientset(objects...)
	events := workqueuetest.Start(t, client, func(env workqueue.Env) (workqueue.Runner, error) {
		return newController(env, 2, &controller{cfg: DefaultConfig(), scales: s, metrics: constant(r)})
	})
	return client, events
}

// await waits until the autoscaler's condition is so.
func await(t *testing.T, client *fake.Clientset, name string, kind autoscalingv2.HorizontalPodAutoscalerConditionType, want string) (h *autoscalingv2.HorizontalPodAutoscaler) {
	t.Helper()
	workqueuetest.Eventually(t, string(kind)+" is "+want, func(ctx context.Context) (bool, error) {
		var err error
		h, err = client.AutoscalingV2().HorizontalPodAutoscalers("ns").Get(ctx, name, metav1.GetOptions{})
		return err == nil && condition(outcome{status: h.Status}, kind) == want, err
	})
	return h
}

func TestTheTargetIsScaledAndTheStatusWritten(t *testing.T) {
	s := &target{replicas: 2, selector: "app=web"}
	client, events := running(t, s, using(1000, 1000), hpa(1, 10, cpu(50)))
	h := await(t, client, "web", autoscalingv2.AbleToScale, "True SucceededRescale")
	if s.now() != 4 || h.Status.DesiredReplicas != 4 || h.Status.CurrentReplicas != 2 || h.Status.LastScaleTime == nil || shown(h.Status) != "100% 1" {
		t.Errorf("%d replicas, %+v", s.now(), h.Status)
	}
	if e := <-events; !strings.HasPrefix(e, "Normal SuccessfulRescale New size: 4;") {
		t.Errorf("%s", e)
	}
	if !slices.Contains(s.asked, "apps/v1 Deployment ns/web") {
		t.Errorf("asked for %v", s.asked)
	}
	h.Spec.MaxReplicas = 3
	if _, err := client.AutoscalingV2().HorizontalPodAutoscalers("ns").Update(t.Context(), h, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	workqueuetest.Eventually(t, "a changed autoscaler is looked at at once", func(context.Context) (bool, error) { return s.now() == 3, nil })
}

func TestAWriteOfTheScaleThatConflictsIsMadeAgainAndOneThatFailsIsTold(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "deployments"}, "web", errors.New("changed"))
	s := &target{replicas: 2, selector: "app=web", fails: []error{conflict, conflict}}
	client, _ := running(t, s, using(1000, 1000), hpa(1, 10, cpu(50)))
	await(t, client, "web", autoscalingv2.AbleToScale, "True SucceededRescale")

	s = &target{replicas: 2, selector: "app=web", fails: []error{errors.New("no")}}
	client, events := running(t, s, using(1000, 1000), hpa(1, 10, cpu(50)))
	await(t, client, "web", autoscalingv2.AbleToScale, "False FailedUpdateScale")
	if e := <-events; !strings.HasPrefix(e, "Warning FailedRescale New size: 4;") || s.now() != 2 {
		t.Errorf("%s; %d replicas", e, s.now())
	}
}

func TestPodsOfTwoAutoscalersAreScaledByNone(t *testing.T) {
	other := hpa(1, 10, cpu(50))
	other.Name = "other"
	s := &target{replicas: 2, selector: "app=web"}
	_, events := running(t, s, using(500, 500), hpa(1, 10, cpu(50)), other)
	// The first to be looked at may not know of the second yet; it will in its next period.
	workqueuetest.Eventually(t, "one of them says so", func(context.Context) (bool, error) {
		select {
		case e := <-events:
			return strings.HasPrefix(e, "Warning AmbiguousSelector pods by selector app=web are controlled by multiple HPAs: [ns/other ns/web]"), nil
		default:
			return false, nil
		}
	})
}

func TestASelectorThatCannotBeUsedIsTold(t *testing.T) {
	for selector, want := range map[string]string{"": "the HPA target's scale is missing a selector", "a=b=c": "couldn't convert selector"} {
		client, _ := running(t, &target{replicas: 2, selector: selector}, using(500, 500), hpa(1, 10, cpu(50)))
		h := await(t, client, "web", autoscalingv2.ScalingActive, "False InvalidSelector")
		if text := h.Status.Conditions[1].Message; !strings.HasPrefix(text, want) {
			t.Errorf("%q: %s", selector, text)
		}
	}
}
