package garbage

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var (
	sets    = resource{gvr: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}, kind: "ReplicaSet", namespaced: true}
	podKind = resource{gvr: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, kind: "Pod", namespaced: true}
)

func object(name string, change ...func(*metav1.PartialObjectMetadata)) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	for _, c := range change {
		c(o)
	}
	return o
}

func ownedBy(names ...string) func(*metav1.PartialObjectMetadata) {
	return func(o *metav1.PartialObjectMetadata) {
		yes := true
		for _, n := range names {
			o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: n, UID: types.UID(n), BlockOwnerDeletion: &yes})
		}
	}
}

func ending(finalizers ...string) func(*metav1.PartialObjectMetadata) {
	return func(o *metav1.PartialObjectMetadata) {
		now := metav1.Now()
		o.DeletionTimestamp, o.Finalizers = &now, finalizers
	}
}

func TestAnUnseenOwnerIsLookedAtFirst(t *testing.T) {
	g := newGraph()
	if look := g.observe(podKind, object("p", ownedBy("rs"))); !slices.Equal(look, []types.UID{"rs"}) {
		t.Fatalf("look at %v, want the owner", look)
	}
	if look := g.observe(sets, object("rs")); len(look) != 0 {
		t.Fatalf("look at %v although the owner turned up", look)
	}
	v, _ := g.view("p")
	if v.ownersNow[0] == nil {
		t.Fatal("the owner is not found from its dependent")
	}
}

func TestDeletingAnOwnerLooksAtItsDependents(t *testing.T) {
	g := newGraph()
	g.observe(sets, object("rs"))
	g.observe(podKind, object("p", ownedBy("rs")))
	if look := g.remove("rs"); !slices.Equal(look, []types.UID{"p"}) {
		t.Fatalf("look at %v, want the pod", look)
	}
	if !g.isGone(identity{uid: "rs"}) {
		t.Fatal("the deletion was forgotten")
	}
}

func TestForegroundDeletionLooksAtOwnerAndDependents(t *testing.T) {
	g := newGraph()
	g.observe(sets, object("rs"))
	g.observe(podKind, object("p", ownedBy("rs")))
	look := g.observe(sets, object("rs", ending(metav1.FinalizerDeleteDependents)))
	slices.Sort(look)
	if !slices.Equal(look, []types.UID{"p", "rs"}) {
		t.Fatalf("look at %v, want both", look)
	}
	v, _ := g.view("rs")
	if len(blockers(v)) != 1 {
		t.Fatal("the pod does not block its owner")
	}
	if look := g.remove("p"); !slices.Equal(look, []types.UID{"rs"}) {
		t.Fatalf("look at %v once the last dependent is gone, want the owner", look)
	}
}

func TestARelistDropsWhatIsNotInIt(t *testing.T) {
	g := newGraph()
	g.observe(sets, object("rs"))
	g.observe(podKind, object("p", ownedBy("rs")))
	if look := g.replace(sets, nil); !slices.Equal(look, []types.UID{"p"}) {
		t.Fatalf("look at %v, want the dependent of what is missing", look)
	}
}

func TestAReferenceByAnotherNameDoesNotCount(t *testing.T) {
	g := newGraph()
	g.observe(sets, object("rs"))
	wrong := object("p", ownedBy("rs"))
	wrong.OwnerReferences[0].Name = "other"
	if look := g.observe(podKind, wrong); !slices.Equal(look, []types.UID{"p"}) {
		t.Fatalf("look at %v, want the pod", look)
	}
	v, _ := g.view("p")
	if v.ownersNow[0] != nil {
		t.Fatal("a reference with the wrong name found its owner")
	}
}

func TestDecide(t *testing.T) {
	foreground := node{deleting: true, foreground: true}
	for _, c := range []struct {
		name       string
		owners     []standing
		dependents []node
		orphan     bool
		want       action
	}{
		{name: "nobody owns it"},
		{name: "an owner lives", owners: []standing{solid}},
		{name: "an owner's kind is unknown", owners: []standing{unclear}},
		{name: "one lives, one is gone", owners: []standing{solid, dangling}, want: action{drop: map[types.UID]bool{"o1": true}}},
		{name: "one lives, one waits", owners: []standing{waiting, solid}, want: action{drop: map[types.UID]bool{"o0": true}}},
		{name: "all gone", owners: []standing{dangling, dangling}, want: action{delete: metav1.DeletePropagationBackground}},
		{name: "all gone, to be orphaned", owners: []standing{dangling}, orphan: true, want: action{delete: metav1.DeletePropagationOrphan}},
		{name: "its owner waits", owners: []standing{waiting}, want: action{delete: metav1.DeletePropagationBackground}},
		{name: "its owner waits, and it has dependents", owners: []standing{waiting}, dependents: []node{{}}, want: action{delete: metav1.DeletePropagationForeground}},
		{name: "a circle", owners: []standing{waiting}, dependents: []node{foreground}, want: action{unblock: true, delete: metav1.DeletePropagationForeground}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := view{node: node{orphan: c.orphan}, dependents: c.dependents}
			for i := range c.owners {
				v.owners = append(v.owners, metav1.OwnerReference{UID: types.UID("o" + string(rune('0'+i)))})
			}
			got := decide(v, c.owners)
			if got.delete != c.want.delete || got.unblock != c.want.unblock || len(got.drop) != len(c.want.drop) {
				t.Fatalf("got %+v, want %+v", got, c.want)
			}
			for uid := range c.want.drop {
				if !got.drop[uid] {
					t.Fatalf("got %+v, want %+v", got, c.want)
				}
			}
		})
	}
}

// An object with an owner that may exist is never deleted, and whatever is deleted has none.
func TestDecideNeverDeletesWhatIsOwned(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		owners := rapid.SliceOf(rapid.SampledFrom([]standing{solid, dangling, waiting, unclear})).Draw(t, "owners")
		v := view{node: node{orphan: rapid.Bool().Draw(t, "orphan"), foreground: rapid.Bool().Draw(t, "foreground")}}
		for i := range owners {
			v.owners = append(v.owners, metav1.OwnerReference{UID: types.UID(rune('a' + i))})
		}
		got := decide(v, owners)
		kept := slices.Contains(owners, solid) || slices.Contains(owners, unclear) || len(owners) == 0
		if kept == (got.delete != "") {
			t.Fatalf("owners %v: %+v", owners, got)
		}
		for i, s := range owners {
			if got.drop[v.owners[i].UID] && (s == solid || s == unclear) {
				t.Fatalf("dropped a reference to an owner that may exist: %v", got)
			}
		}
	})
}

// However events are ordered, the graph's links mirror the owner references of what it has seen, and nothing else stays.
func TestGraphMirrorsReferences(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	rapid.Check(t, func(t *rapid.T) {
		g := newGraph()
		truth := map[string][]string{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "name")
			if _, ok := truth[name]; ok && rapid.Bool().Draw(t, "remove") {
				g.remove(types.UID(name))
				delete(truth, name)
				continue
			}
			owners := rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID).Draw(t, "owners")
			g.observe(sets, object(name, ownedBy(owners...)))
			truth[name] = owners
		}
		for name, owners := range truth {
			v, ok := g.view(types.UID(name))
			if !ok || !v.seen || len(v.owners) != len(owners) {
				t.Fatalf("%s: %+v, want owners %v", name, v, owners)
			}
			for i, o := range owners {
				_, alive := truth[o]
				if alive != (v.ownersNow[i] != nil) {
					t.Fatalf("%s: owner %s alive %v, graph says %v", name, o, alive, v.ownersNow[i])
				}
			}
		}
		for uid, n := range g.nodes {
			if _, ok := truth[string(uid)]; !ok && (n.seen || len(n.dependents) == 0) {
				t.Fatalf("%s stays in the graph: %+v", uid, n)
			}
		}
	})
}
