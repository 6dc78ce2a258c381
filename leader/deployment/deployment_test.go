package deployment

import (
	"fmt"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func deploymentOf(replicas int32, surge, unavailable intstr.IntOrString) *apps.Deployment {
	deadline := int32(600)
	return &apps.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "d", Generation: 1},
		Spec: apps.DeploymentSpec{
			Replicas: &replicas, ProgressDeadlineSeconds: &deadline,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}},
			Strategy: apps.DeploymentStrategy{
				Type:          apps.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &apps.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable},
			},
		},
	}
}

// world is a Deployment with its ReplicaSets, and what their controller and the nodes would do.
type world struct {
	d    *apps.Deployment
	sets []*apps.ReplicaSet
	now  time.Time
}

func (w *world) step(t interface{ Fatalf(string, ...any) }) plan {
	w.now = w.now.Add(time.Second)
	p, err := decide(view{deployment: w.d, sets: w.sets, oldRunning: w.oldRunning(), now: w.now})
	if err != nil {
		t.Fatalf("%v", err)
	}
	if p.create != nil {
		p.create.UID, p.create.CreationTimestamp = types.UID(p.create.Name), metav1.NewTime(w.now)
		w.sets = append(w.sets, p.create)
	}
	for _, u := range p.update {
		for i := range w.sets {
			if w.sets[i].Name == u.set.Name {
				w.sets[i] = u.set
			}
		}
	}
	for _, gone := range p.remove {
		for i := range w.sets {
			if w.sets[i].Name == gone.Name {
				w.sets = append(w.sets[:i:i], w.sets[i+1:]...)
				break
			}
		}
	}
	w.d = w.d.DeepCopy()
	w.d.Status = p.status
	if p.revision != "" {
		w.d.Annotations = map[string]string{annRevision: p.revision}
	}
	return p
}

func (w *world) oldRunning() bool {
	_, old := split(w.d, w.sets)
	for _, s := range old {
		if s.Status.Replicas > 0 {
			return true
		}
	}
	return false
}

// serve lets a set have the pods it asks for; up of them become available.
func serve(s *apps.ReplicaSet, up int32) {
	s.Status.Replicas = size(s)
	s.Status.AvailableReplicas = min(size(s), s.Status.AvailableReplicas+up)
	s.Status.ReadyReplicas = s.Status.AvailableReplicas
}

func (w *world) image(n int) {
	w.d = w.d.DeepCopy()
	w.d.Generation++
	w.d.Spec.Template.Spec.Containers = []v1.Container{{Name: "c", Image: fmt.Sprintf("image:%d", n)}}
}

// settle runs until nothing changes, with pods that become available at once.
func (w *world) settle(t interface{ Fatalf(string, ...any) }) {
	quiet := 0
	for range 100 {
		p := w.step(t)
		for _, s := range w.sets {
			serve(s, 1000)
		}
		if p.create != nil || len(p.update)+len(p.remove) > 0 || !complete(w.d, &w.d.Status) {
			quiet = 0
		} else if quiet++; quiet == 2 {
			return
		}
	}
	t.Fatalf("never settles: %+v", w.d.Status)
}

func TestARolloutEndsWithOneFullSet(t *testing.T) {
	w := &world{d: deploymentOf(3, intstr.FromInt32(1), intstr.FromInt32(0)), now: t0}
	w.settle(t)
	for n := range 3 {
		w.image(n + 1)
		w.settle(t)
	}
	if len(w.sets) != 4 || w.d.Annotations[annRevision] != "4" {
		t.Fatalf("%d sets, revision %s", len(w.sets), w.d.Annotations[annRevision])
	}
	if c := condition(&w.d.Status, apps.DeploymentProgressing); c.Reason != reasonAvailable {
		t.Fatalf("progressing: %+v", c)
	}
}

func TestRollingBackReusesTheSetUnderANewRevision(t *testing.T) {
	w := &world{d: deploymentOf(3, intstr.FromInt32(1), intstr.FromInt32(0)), now: t0}
	w.image(1)
	w.settle(t)
	w.image(2)
	w.settle(t)
	w.image(1)
	w.settle(t)
	current, old := split(w.d, w.sets)
	if len(old) != 1 || current.Annotations[annRevision] != "3" || current.Annotations[annRevisionHistory] != "1" {
		t.Fatalf("current %v", current.Annotations)
	}
}

func TestHistoryIsCutToItsLimit(t *testing.T) {
	w := &world{d: deploymentOf(1, intstr.FromInt32(1), intstr.FromInt32(0)), now: t0}
	limit := int32(2)
	w.d.Spec.RevisionHistoryLimit = &limit
	for n := range 6 {
		w.image(n)
		w.settle(t)
	}
	if _, old := split(w.d, w.sets); len(old) != 2 {
		t.Fatalf("%d old sets, want 2", len(old))
	}
}

func TestAStuckRolloutTimesOutAndSaysWhenToLook(t *testing.T) {
	w := &world{d: deploymentOf(2, intstr.FromInt32(1), intstr.FromInt32(0)), now: t0}
	p := w.step(t)
	if p.again <= 9*time.Minute || p.again > 11*time.Minute {
		t.Fatalf("look again in %s", p.again)
	}
	w.now = w.now.Add(601 * time.Second)
	w.step(t)
	if c := condition(&w.d.Status, apps.DeploymentProgressing); c.Reason != reasonTimedOut || c.Status != v1.ConditionFalse {
		t.Fatalf("%+v", c)
	}
}

func TestAPausedDeploymentScalesButDoesNotRoll(t *testing.T) {
	w := &world{d: deploymentOf(4, intstr.FromInt32(1), intstr.FromInt32(1)), now: t0}
	w.settle(t)
	w.image(1)
	w.d.Spec.Paused = true
	six := int32(6)
	w.d.Spec.Replicas = &six
	for range 5 {
		w.step(t)
		for _, s := range w.sets {
			serve(s, 10)
		}
	}
	if len(w.sets) != 1 || size(w.sets[0]) != 6 {
		t.Fatalf("%d sets, first of size %d", len(w.sets), size(w.sets[0]))
	}
	if c := condition(&w.d.Status, apps.DeploymentProgressing); c.Reason != reasonPaused {
		t.Fatalf("%+v", c)
	}
}

func TestRecreateWaitsForTheOldPodsToEnd(t *testing.T) {
	w := &world{d: deploymentOf(2, intstr.FromInt32(0), intstr.FromInt32(0)), now: t0}
	w.d.Spec.Strategy = apps.DeploymentStrategy{Type: apps.RecreateDeploymentStrategyType}
	w.settle(t)
	w.image(1)
	w.step(t) // scales the old set to zero
	if p := w.step(t); p.create != nil {
		t.Fatal("made the new set while old pods run")
	}
	serve(w.sets[0], 0)
	if p := w.step(t); p.create == nil || size(p.create) != 2 {
		t.Fatalf("%+v", p)
	}
}

func TestScalingInARolloutKeepsTheProportions(t *testing.T) {
	d := deploymentOf(30, intstr.FromInt32(0), intstr.FromInt32(3))
	set := func(name string, n int32, at time.Time) *apps.ReplicaSet {
		s := &apps.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(at)}}
		s.Spec.Replicas = &n
		s.Annotations = map[string]string{annDesired: "10", annMax: "10"}
		return s
	}
	a, b := set("a", 6, t0), set("b", 4, t0.Add(time.Hour))
	got := proportional(d, []*apps.ReplicaSet{a, b})
	if got[a] != 18 || got[b] != 12 {
		t.Fatalf("a %d b %d, want 18 and 12", got[a], got[b])
	}
}

// Whatever the sizes and limits, whenever pods come up or break, and whenever the template changes in between: there are
// never more pods asked for than surge allows, never fewer available than promised on our account, and it ends.
func TestRolloutsKeepTheirPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int32Range(1, 12).Draw(t, "replicas")
		w := &world{d: deploymentOf(n,
			intstr.FromInt32(rapid.Int32Range(0, 4).Draw(t, "surge")), intstr.FromInt32(rapid.Int32Range(0, 4).Draw(t, "unavailable"))), now: t0}
		w.settle(t)
		image := 0
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if rapid.IntRange(0, 9).Draw(t, "change") == 0 {
				image++
				w.image(image % 4)
			}
			before := available(w.sets)
			w.step(t)
			if got, most := total(w.sets), n+maxSurge(w.d); got > most {
				t.Fatalf("%d pods asked for, at most %d allowed", got, most)
			}
			for _, s := range w.sets {
				serve(s, rapid.Int32Range(0, 3).Draw(t, "up"))
			}
			if got, floor := available(w.sets), n-maxUnavailable(w.d); got < floor && got < before {
				t.Fatalf("%d available after scaling down, promised %d", got, floor)
			}
		}
		w.settle(t)
	})
}

func TestHashChangesWithTemplateAndCollisions(t *testing.T) {
	d := deploymentOf(1, intstr.FromInt32(1), intstr.FromInt32(0))
	a, _ := newSet(d)
	one := int32(1)
	d.Status.CollisionCount = &one
	b, _ := newSet(d)
	d.Spec.Template.Spec.Hostname = "x"
	c, _ := newSet(d)
	if a.Name == b.Name || b.Name == c.Name {
		t.Fatal(a.Name, b.Name, c.Name)
	}
	if !sameTemplate(&c.Spec.Template, &d.Spec.Template) {
		t.Fatal("a new set is not of its Deployment's template")
	}
}
