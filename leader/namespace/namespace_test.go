package namespace

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestConditionsTellWhatIsInTheWay(t *testing.T) {
	f := &findings{
		left:      map[schema.GroupVersionResource]int{{Version: "v1", Resource: "pods"}: 2},
		finalizer: map[string]int{"example.com/hold": 1},
		delete:    []error{errors.New("widgets: webhook said no")},
	}
	if f.done() {
		t.Fatal("done")
	}
	conditions, changed := merge(nil, f.conditions(t0))
	if !changed || len(conditions) != 5 {
		t.Fatalf("%+v", conditions)
	}
	for want, text := range map[v1.NamespaceConditionType]string{
		v1.NamespaceContentRemaining:         "pods has 2 resource instances",
		v1.NamespaceFinalizersRemaining:      "example.com/hold in 1 resource instances",
		v1.NamespaceDeletionContentFailure:   "webhook said no",
		v1.NamespaceDeletionDiscoveryFailure: "successfully discovered",
	} {
		for _, c := range conditions {
			bad := want != v1.NamespaceDeletionDiscoveryFailure
			if c.Type == want && (!strings.Contains(c.Message, text) || (c.Status == v1.ConditionTrue) != bad) {
				t.Errorf("%+v", c)
			}
		}
	}
	if _, changed := merge(conditions, f.conditions(t0.Add(time.Hour))); changed {
		t.Error("the same findings change the conditions")
	}
	if now, changed := merge(conditions, (&findings{}).conditions(t0.Add(time.Hour))); !changed || now[3].Status != v1.ConditionFalse || !now[3].LastTransitionTime.Time.Equal(t0.Add(time.Hour)) {
		t.Errorf("%+v", now)
	}
}

func TestOnlyACleanPassEndsTheNamespace(t *testing.T) {
	if !(&findings{}).done() || (&findings{discovery: errors.New("x")}).done() || (&findings{delete: []error{errors.New("x")}}).done() {
		t.Fatal("wrong")
	}
}

func TestLookingAgainSlowsDown(t *testing.T) {
	if lookAgain(0) != 50*time.Millisecond || lookAgain(20*time.Second) != 5*time.Second || lookAgain(time.Hour) != 10*time.Second {
		t.Fatal(lookAgain(0), lookAgain(20*time.Second), lookAgain(time.Hour))
	}
}
