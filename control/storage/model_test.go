package storage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"pgregory.net/rapid"
)

// model is the naive store: what every revision held, by key. It keeps it all.
type model struct {
	revs   []int64 // of states, ascending
	states []map[string]modelPod
}

type modelPod struct {
	rev  int64
	team string
}

func (m *model) at(rev int64) map[string]modelPod {
	i, found := slices.BinarySearch(m.revs, rev)
	if !found {
		i--
	}
	return m.states[i]
}

func (m *model) write(rev int64, change func(map[string]modelPod)) {
	next := map[string]modelPod{}
	if n := len(m.states); n > 0 {
		next = maps.Clone(m.states[n-1])
	}
	change(next)
	m.revs, m.states = append(m.revs, rev), append(m.states, next)
}

// modelEvent is an event as a test compares it.
type modelEvent struct {
	kind watch.EventType
	key  string
	rev  int64
}

// events is what a watch from rev on must see under prefix of pods of team (""
// for all).
func (m *model) events(rev int64, prefix, team string) []modelEvent {
	var out []modelEvent
	for i, r := range m.revs {
		if r <= rev || i == 0 {
			continue
		}
		before, after := m.states[i-1], m.states[i]
		for _, key := range slices.Sorted(maps.Keys(union(before, after))) {
			b, was := before[key]
			a, is := after[key]
			if !hasPrefix(key, prefix) || was == is && a.rev == b.rev {
				continue
			}
			was, is = was && (team == "" || b.team == team), is && (team == "" || a.team == team)
			switch {
			case was && is:
				out = append(out, modelEvent{watch.Modified, key, r})
			case is:
				out = append(out, modelEvent{watch.Added, key, r})
			case was:
				out = append(out, modelEvent{watch.Deleted, key, r})
			}
		}
	}
	return out
}

func union(a, b map[string]modelPod) map[string]modelPod {
	u := maps.Clone(a)
	maps.Copy(u, b)
	return u
}

func hasPrefix(key, prefix string) bool {
	return len(key) >= len(prefix) && key[:len(prefix)] == prefix
}

// list is what a list under prefix at rev must give: "key@rev", in order.
func (m *model) list(rev int64, prefix, team string) []string {
	var out []string
	state := m.at(rev)
	for _, key := range slices.Sorted(maps.Keys(state)) {
		if p := state[key]; hasPrefix(key, prefix) && (team == "" || p.team == team) {
			out = append(out, fmt.Sprintf("%s@%d", key, p.rev))
		}
	}
	return out
}

func ofTeam(team string) storage.SelectionPredicate {
	p := storage.Everything
	if team != "" {
		p.Label = labels.SelectorFromSet(labels.Set{"team": team})
		p.Field = fields.Everything()
		p.GetAttrs = func(obj k8sruntime.Object) (labels.Set, fields.Set, error) {
			return obj.(*example.Pod).Labels, nil, nil
		}
	}
	return p
}

// TestListsAndWatchesAgreeWithANaiveModel writes at random and compares every
// paginated list, at old and new revisions, and every watch with a model that
// keeps each revision whole.
func TestListsAndWatchesAgreeWithANaiveModel(t *testing.T) {
	ctx, s, kv := setUp(t)
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		root := fmt.Sprintf("/pods/run%d-", run)
		first := kv.View().Revision()
		m := &model{}
		m.write(first, func(map[string]modelPod) {})
		namespace := rapid.SampledFrom([]string{"a", "b", "ab"})
		name := rapid.SampledFrom([]string{"x", "xy", "y", "z", "zz"})
		team := rapid.SampledFrom([]string{"red", "blue"})
		prefixOf := func(t *rapid.T) string { return root + namespace.Draw(t, "namespace") + "/" }
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				ns, n, tm := namespace.Draw(t, "namespace"), name.Draw(t, "name"), team.Draw(t, "team")
				key, out := root+ns+"/"+n, &example.Pod{}
				err := s.GuaranteedUpdate(ctx, key, out, true, nil, storage.SimpleUpdate(func(k8sruntime.Object) (k8sruntime.Object, error) {
					return &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: n, Labels: map[string]string{"team": tm}}}, nil
				}), nil)
				if err != nil {
					t.Fatal(err)
				}
				rev, _ := strconv.ParseInt(out.ResourceVersion, 10, 64)
				if last := m.states[len(m.states)-1][key]; last.team == tm {
					if rev != last.rev {
						t.Fatalf("an update that changes nothing went from %d to %d", last.rev, rev)
					}
					return
				}
				m.write(rev, func(s map[string]modelPod) { s[key] = modelPod{rev, tm} })
			},
			"delete": func(t *rapid.T) {
				key, out := prefixOf(t)+name.Draw(t, "name"), &example.Pod{}
				err := s.Delete(ctx, key, out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
				if _, is := m.states[len(m.states)-1][key]; !is {
					if !storage.IsNotFound(err) {
						t.Fatalf("delete of nothing: %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				rev, _ := strconv.ParseInt(out.ResourceVersion, 10, 64)
				m.write(rev, func(s map[string]modelPod) { delete(s, key) })
			},
			"list":  func(t *rapid.T) { m.checkList(t, s, prefixOf(t)) },
			"watch": func(t *rapid.T) { m.checkWatch(t, s, prefixOf(t)) },
		})
	})
}

// selected is the team a list or a watch selects, "" for all.
var selected = rapid.SampledFrom([]string{"", "red"})

func (m *model) checkList(t *rapid.T, s *store, prefix string) {
	team := selected.Draw(t, "selected")
	rev := rapid.SampledFrom(m.revs).Draw(t, "revision")
	limit := rapid.Int64Range(0, 4).Draw(t, "limit")
	got := pages(t, s, prefix, rev, limit, team)
	if want := m.list(rev, prefix, team); !slices.Equal(got, want) {
		t.Fatalf("list of %s at %d by %d:\n got %v\nwant %v", prefix, rev, limit, got, want)
	}
}

func (m *model) checkWatch(t *rapid.T, s *store, prefix string) {
	team := selected.Draw(t, "selected")
	from := rapid.SampledFrom(m.revs).Draw(t, "from")
	want := m.events(from, prefix, team)
	if got := watched(t, s, prefix, from, team, m.revs[len(m.revs)-1]); !slices.Equal(got, want) {
		t.Fatalf("watch of %s from %d:\n got %v\nwant %v", prefix, from, got, want)
	}
}

// pages lists all of prefix at rev, limit objects at a time, and checks what
// each page says of the rest.
func pages(t *rapid.T, s *store, prefix string, rev, limit int64, team string) []string {
	opts := storage.ListOptions{
		Recursive: true, Predicate: ofTeam(team),
		ResourceVersion: itoa(rev), ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	}
	opts.Predicate.Limit = limit
	var all []string
	var remaining *int64
	for {
		list := &example.PodList{}
		if err := s.GetList(context.Background(), prefix, opts, list); err != nil {
			t.Fatal(err)
		}
		if limit > 0 && int64(len(list.Items)) > limit || list.ResourceVersion != itoa(rev) {
			t.Fatalf("page of %d items at %s, want %d at %d", len(list.Items), list.ResourceVersion, limit, rev)
		}
		if remaining != nil && *remaining < int64(len(list.Items)) {
			t.Fatalf("%d items in a page where %d remained", len(list.Items), *remaining)
		}
		for _, p := range list.Items {
			all = append(all, prefix+p.Name+"@"+p.ResourceVersion)
		}
		if list.Continue == "" {
			if remaining != nil && *remaining != int64(len(list.Items)) {
				t.Fatalf("%d remained, the last page has %d", *remaining, len(list.Items))
			}
			return all
		}
		if (list.RemainingItemCount == nil) != (team != "") {
			t.Fatalf("remaining item count %v for selector %q", list.RemainingItemCount, team)
		}
		remaining = list.RemainingItemCount
		opts.Predicate.Continue, opts.ResourceVersion, opts.ResourceVersionMatch = list.Continue, "", ""
	}
}

// watched collects the events up to a bookmark at until or later.
func watched(t *rapid.T, s *store, prefix string, from int64, team string, until int64) []modelEvent {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	opts := storage.ListOptions{Recursive: true, Predicate: ofTeam(team), ResourceVersion: itoa(from), ProgressNotify: true}
	w, err := s.Watch(ctx, prefix, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := s.RequestWatchProgress(ctx); err != nil {
		t.Fatal(err)
	}
	var got []modelEvent
	for e := range w.ResultChan() {
		switch e.Type {
		case watch.Error:
			t.Fatalf("watch ended after %v with %v", got, e.Object)
		case watch.Bookmark:
			if rev, _ := strconv.ParseInt(e.Object.(*example.Pod).ResourceVersion, 10, 64); rev >= until {
				return got
			}
		default:
			p := e.Object.(k8sruntime.CacheableObject).GetObject().(*example.Pod)
			rev, _ := strconv.ParseInt(p.ResourceVersion, 10, 64)
			got = append(got, modelEvent{e.Type, prefix + p.Name, rev})
		}
	}
	t.Fatalf("no bookmark at %d after %v", until, got)
	return nil
}
