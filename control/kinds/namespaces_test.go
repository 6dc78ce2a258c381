package kinds

import (
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"
)

func TestFirstDeleteMarksANamespace(t *testing.T) {
	now := metav1.NewTime(time.Unix(1, 0))
	for name, c := range map[string]struct {
		options metav1.DeleteOptions
		have    []string
		want    []string
	}{
		"no policy keeps finalizers":    {have: []string{"a", metav1.FinalizerOrphanDependents}, want: []string{"a", metav1.FinalizerOrphanDependents}},
		"orphan":                        {options: metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan)}, want: []string{metav1.FinalizerOrphanDependents}},
		"foreground":                    {options: metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}, have: []string{"a"}, want: []string{"a", metav1.FinalizerDeleteDependents}},
		"background takes both off":     {options: metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}, have: []string{metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents}},
		"orphanDependents of old times": {options: metav1.DeleteOptions{OrphanDependents: ptr.To(true)}, have: []string{metav1.FinalizerDeleteDependents}, want: []string{metav1.FinalizerOrphanDependents}},
	} {
		ns := &api.Namespace{ObjectMeta: metav1.ObjectMeta{Finalizers: c.have}}
		markTerminating(ns, &c.options, now)
		if ns.Status.Phase != api.NamespaceTerminating || !ns.DeletionTimestamp.Equal(&now) {
			t.Errorf("%s: %+v", name, ns)
		}
		slices.Sort(ns.Finalizers)
		slices.Sort(c.want)
		if !slices.Equal(ns.Finalizers, c.want) {
			t.Errorf("%s: finalizers %v, want %v", name, ns.Finalizers, c.want)
		}
	}
}

func TestPreconditionsPinTheDeletion(t *testing.T) {
	ns := &api.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7"}}
	free := &metav1.DeleteOptions{}
	if err := bindPreconditions(free, ns); err != nil || *free.Preconditions.UID != "u" {
		t.Errorf("%v %v", free, err)
	}
	for _, p := range []metav1.Preconditions{{UID: ptr.To(types.UID("x"))}, {ResourceVersion: ptr.To("6")}} {
		if err := bindPreconditions(&metav1.DeleteOptions{Preconditions: &p}, ns); !apierrors.IsConflict(err) {
			t.Errorf("%+v: %v, want a conflict", p, err)
		}
	}
}

func TestRowsNameEachKindOnce(t *testing.T) {
	s := &Set{}
	seen, groups := map[string]bool{}, map[string]bool{}
	for _, g := range Groups {
		groups[g.Name] = true
	}
	for _, r := range s.table() {
		id := r.GroupResource().String()
		if seen[id] {
			t.Errorf("%s is there twice", id)
		}
		seen[id] = true
		if r.Singular == "" || r.Types.New == nil || r.Strategy == nil || !groups[r.Group] {
			t.Errorf("%s is not complete", id)
		}
		if r.WriteOnly != "" && r.Views[r.WriteOnly] == nil {
			t.Errorf("%s has no view %s", id, r.WriteOnly)
		}
	}
}
