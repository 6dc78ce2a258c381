package controllerref

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

func pod(name, version string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: version, Labels: map[string]string{"app": "web"}}}
	for _, c := range change {
		c(p)
	}
	return p
}

func controlledBy(uid types.UID) func(*v1.Pod) {
	return func(p *v1.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{UID: uid, Controller: &yes}}
	}
}

func labelled(l string) func(*v1.Pod) { return func(p *v1.Pod) { p.Labels["app"] = l } }

func ending(p *v1.Pod) { at := metav1.Now(); p.DeletionTimestamp = &at }

func TestJudge(t *testing.T) {
	owner, leaving := pod("owner", "1"), pod("owner", "1", ending)
	selector := labels.SelectorFromSet(labels.Set{"app": "web"})
	for _, c := range []struct {
		name  string
		owner *v1.Pod
		obj   *v1.Pod
		want  Verdict
	}{
		{"ours", owner, pod("p", "1", controlledBy("owner")), Keep},
		{"ours, being deleted", owner, pod("p", "1", controlledBy("owner"), ending), Keep},
		{"somebody else's", owner, pod("p", "1", controlledBy("x")), Ignore},
		{"ours, no longer matching", owner, pod("p", "1", controlledBy("owner"), labelled("db")), Release},
		{"ours, no longer matching, owner leaving", leaving, pod("p", "1", controlledBy("owner"), labelled("db")), Ignore},
		{"an orphan that matches", owner, pod("p", "1"), Adopt},
		{"an orphan that does not", owner, pod("p", "1", labelled("db")), Ignore},
		{"an orphan being deleted", owner, pod("p", "1", ending), Ignore},
		{"an orphan, owner leaving", leaving, pod("p", "1"), Ignore},
	} {
		if got := Decide(c.owner, selector, c.obj); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestAnOwnerThatIsGoneAdoptsNothing(t *testing.T) {
	patched := 0
	c := Claimer[*v1.Pod]{
		Owner: pod("owner", "1"), Selector: labels.Everything(),
		Fresh: func(context.Context) (metav1.Object, error) { return pod("another", "2"), nil },
		Patch: func(context.Context, *v1.Pod, []byte) error { patched++; return nil },
	}
	mine, err := c.Claim(t.Context(), []*v1.Pod{pod("orphan", "1"), pod("ours", "1", controlledBy("owner"))})
	if err == nil || len(mine) != 1 || patched != 0 {
		t.Fatalf("claimed %d, patched %d, error %v", len(mine), patched, err)
	}
}

func TestClaimAdoptsAndReleasesByPatch(t *testing.T) {
	var patches []string
	c := Claimer[*v1.Pod]{
		Owner: pod("owner", "1"), Selector: labels.SelectorFromSet(labels.Set{"app": "web"}),
		Fresh: func(context.Context) (metav1.Object, error) { return pod("owner", "2"), nil },
		Patch: func(_ context.Context, p *v1.Pod, b []byte) error {
			patches = append(patches, p.Name+" "+string(b))
			return nil
		},
	}
	mine, err := c.Claim(t.Context(), []*v1.Pod{pod("orphan", "1"), pod("leaver", "1", controlledBy("owner"), labelled("db"))})
	if err != nil || len(mine) != 1 || len(patches) != 2 {
		t.Fatalf("%v %v %v", mine, patches, err)
	}
	if !strings.Contains(patches[0], `"uid":"orphan"`) || !strings.Contains(patches[1], `"$patch":"delete"`) {
		t.Fatal(patches)
	}
}

func TestPendingHoldsBackUntilTheCacheShowsOurWrites(t *testing.T) {
	p := NewPending()
	p.Wrote("owner", pod("a", "10"))
	if p.Settled("owner", nil) {
		t.Fatal("settled before the creation is shown")
	}
	if !p.Settled("other", nil) {
		t.Fatal("another owner is held back")
	}
	p.Observe(pod("z", "9"))
	if p.Settled("owner", nil) {
		t.Fatal("settled by an older object")
	}
	p.Observe(pod("z", "11")) // a was created, and may be deleted again, by then
	if !p.Settled("owner", nil) {
		t.Fatal("not settled although the cache is newer")
	}
	p.Deleted("owner", "b")
	if p.Settled("owner", Objects([]*v1.Pod{pod("b", "12")})) {
		t.Fatal("settled while the cache shows the deleted pod as alive")
	}
	if !p.Settled("owner", Objects([]*v1.Pod{pod("b", "13", ending)})) {
		t.Fatal("not settled although the pod is on its way out")
	}
}

func TestPendingHoldsBackWhileInitializersAreAtWork(t *testing.T) {
	p := NewPending()
	p.Unfinished("owner", errors.New("refused"))
	p.Unfinished("owner", apierrors.NewTimeoutError("nobody knows", 0))
	if !p.Settled("owner", nil) {
		t.Fatal("held back by creations that made nothing")
	}
	late := apierrors.NewTimeoutError("still being initialized", 0)
	late.ErrStatus.Details.UID = "a"
	p.Unfinished("owner", late)
	p.Observe(pod("z", "9"))
	if p.Settled("owner", nil) {
		t.Fatal("settled before the object is seen")
	}
	if !p.Settled("owner", Objects([]*v1.Pod{pod("a", "10")})) {
		t.Fatal("not settled although the object is seen")
	}
}

func TestPendingForgetsInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPending()
		p.Wrote("owner", pod("a", "10"))
		time.Sleep(forgetAfter + time.Second)
		if !p.Settled("owner", nil) {
			t.Fatal("held back for ever")
		}
	})
}

func TestSlowStartStopsEarly(t *testing.T) {
	var calls atomic.Int32
	done, err := SlowStart(100, func(i int) error {
		calls.Add(1)
		if i >= 2 {
			return errors.New("quota")
		}
		return nil
	})
	if err == nil || done != 2 || calls.Load() != 3 { // batches of 1, then 2 of which one fails
		t.Fatalf("%d done, %d calls, %v", done, calls.Load(), err)
	}
	calls.Store(0)
	if done, err := SlowStart(100, func(int) error { calls.Add(1); return nil }); done != 100 || err != nil || calls.Load() != 100 {
		t.Fatal(done, err, calls.Load())
	}
}
