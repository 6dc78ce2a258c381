package namespace

import (
	"fmt"
	"sort"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// findings are the results of one pass over a namespace.
type findings struct {
	discovery error                               // some groups could not be listed
	delete    []error                             // what could not be deleted or listed
	left      map[schema.GroupVersionResource]int // objects that are still there
	finalizer map[string]int                      // objects that wait for this finalizer
}

// done reports whether the namespace may go.
func (f *findings) done() bool {
	return f.discovery == nil && len(f.delete) == 0 && len(f.left) == 0
}

// conditions are the five a user reads in kubectl get ns -o yaml, true where something stands in the way.
func (f *findings) conditions(now time.Time) []v1.NamespaceCondition {
	at := metav1.NewTime(now)
	make := func(t v1.NamespaceConditionType, bad bool, badReason, badText, goodReason, goodText string) v1.NamespaceCondition {
		c := v1.NamespaceCondition{Type: t, Status: v1.ConditionFalse, Reason: goodReason, Message: goodText, LastTransitionTime: at}
		if bad {
			c.Status, c.Reason, c.Message = v1.ConditionTrue, badReason, badText
		}
		return c
	}
	discovery := ""
	if f.discovery != nil {
		discovery = "Discovery failed for some groups, " + f.discovery.Error()
	}
	return []v1.NamespaceCondition{
		make(v1.NamespaceDeletionDiscoveryFailure, f.discovery != nil, "DiscoveryFailed", discovery,
			"ResourcesDiscovered", "All resources successfully discovered"),
		make(v1.NamespaceDeletionGVParsingFailure, false, "", "",
			"ParsedGroupVersions", "All legacy kube types successfully parsed"),
		make(v1.NamespaceDeletionContentFailure, len(f.delete) > 0, "ContentDeletionFailed", f.failures(),
			"ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
		make(v1.NamespaceContentRemaining, len(f.left) > 0, "SomeResourcesRemain", f.remaining(),
			"ContentRemoved", "All content successfully removed"),
		make(v1.NamespaceFinalizersRemaining, len(f.finalizer) > 0, "SomeFinalizersRemain", f.finalizers(),
			"ContentHasNoFinalizers", "All content-preserving finalizers finished"),
	}
}

func (f *findings) failures() string {
	var texts []string
	for _, err := range f.delete {
		texts = append(texts, err.Error())
	}
	sort.Strings(texts)
	return "Failed to delete all resource types, " + fmt.Sprint(len(texts)) + " remaining: " + strings.Join(texts, ", ")
}

func (f *findings) remaining() string {
	var texts []string
	for gvr, n := range f.left {
		texts = append(texts, fmt.Sprintf("%s has %d resource instances", gvr.GroupResource(), n))
	}
	sort.Strings(texts)
	return "Some resources are remaining: " + strings.Join(texts, ", ")
}

func (f *findings) finalizers() string {
	var texts []string
	for name, n := range f.finalizer {
		texts = append(texts, fmt.Sprintf("%s in %d resource instances", name, n))
	}
	sort.Strings(texts)
	return "Some content in the namespace has finalizers remaining: " + strings.Join(texts, ", ")
}

// merge replaces the conditions of old that now has too, keeps the transition time where the status stayed, and reports
// whether anything changed.
func merge(old, now []v1.NamespaceCondition) ([]v1.NamespaceCondition, bool) {
	out := append([]v1.NamespaceCondition(nil), old...)
	changed := false
next:
	for _, c := range now {
		for i := range out {
			if out[i].Type != c.Type {
				continue
			}
			if out[i].Status == c.Status {
				c.LastTransitionTime = out[i].LastTransitionTime
			}
			if out[i] != c {
				out[i], changed = c, true
			}
			continue next
		}
		out, changed = append(out, c), true
	}
	return out, changed
}

// lookAgain is how long to wait before the next pass: short at first, longer the longer the namespace has been ending.
func lookAgain(since time.Duration) time.Duration {
	return min(max(since/4, 50*time.Millisecond), 10*time.Second)
}
