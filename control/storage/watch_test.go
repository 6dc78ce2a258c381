package storage

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// patience is how long a test waits for what must happen.
const patience = time.Minute

func startWatch(t *testing.T, s *store, rv string, change ...func(*storage.ListOptions)) watch.Interface {
	t.Helper()
	opts := storage.ListOptions{ResourceVersion: rv, Predicate: storage.Everything, Recursive: true}
	for _, f := range change {
		f(&opts)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w, err := s.Watch(ctx, "/pods/", opts)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func receive(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("the watch has ended")
		}
		return e
	case <-time.After(patience):
		t.Fatal("no event")
	}
	panic("unreachable")
}

func version(t *testing.T, obj k8sruntime.Object) string {
	t.Helper()
	a, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	return a.GetResourceVersion()
}

func TestWatchersShareOneDecodingAndOneEncoding(t *testing.T) {
	_, s, _ := setUp(t)
	first := create(t, s, pod("ns", "a"))
	w1, w2 := startWatch(t, s, first.ResourceVersion), startWatch(t, s, first.ResourceVersion)
	create(t, s, pod("ns", "b"))
	o1, o2 := receive(t, w1).Object, receive(t, w2).Object
	if o1 != o2 {
		t.Fatalf("two watchers got two objects: %p, %p", o1, o2)
	}
	shared := o1.(k8sruntime.CacheableObject)
	encoded := 0
	encode := func(obj k8sruntime.Object, w io.Writer) error {
		encoded++
		obj.(*example.Pod).Name = "changed by the encoder"
		_, err := w.Write([]byte("x"))
		return err
	}
	var out bytes.Buffer
	for range 3 {
		if err := shared.CacheEncode("id", encode, &out); err != nil {
			t.Fatal(err)
		}
	}
	if encoded != 1 || out.String() != "xxx" {
		t.Errorf("encoded %d times, wrote %q", encoded, out.String())
	}
	shared.GetObject().(*example.Pod).Name = "changed by a client"
	if got := shared.GetObject().(*example.Pod).Name; got != "b" {
		t.Errorf("the shared object is now called %q", got)
	}
	runtime.KeepAlive(o2)
}

func TestSlowWatcherIsCutOffAndHoldsNobodyUp(t *testing.T) {
	ctx, s, kv := setUp(t)
	start := create(t, s, pod("ns", "a")).ResourceVersion
	w := startWatch(t, s, start)
	var last string
	// More than the buffer and the largest batch of the store hold together.
	for range 1500 {
		out := &example.Pod{}
		err := s.GuaranteedUpdate(ctx, "/pods/ns/a", out, false, nil, storage.SimpleUpdate(func(obj k8sruntime.Object) (k8sruntime.Object, error) {
			p := obj.(*example.Pod)
			p.Generation++
			return p, nil
		}), nil)
		if err != nil {
			t.Fatal(err)
		}
		last = out.ResourceVersion
	}
	if err := kv.Compact(ctx, kv.View().Revision()); err != nil {
		t.Fatal(err)
	}
	create(t, s, pod("ns", "b"))
	seen := start
	for {
		e := receive(t, w)
		if e.Type == watch.Error {
			if s := e.Object.(*metav1.Status); s.Code != http.StatusGone || s.Reason != metav1.StatusReasonExpired {
				t.Errorf("cut off with %d %s, want 410 Expired", s.Code, s.Reason)
			}
			break
		}
		if e.Type != watch.Modified {
			// All of it was taken before the history went: nothing to show.
			t.Fatalf("event %s %v after %s; last update was %s", e.Type, e.Object, seen, last)
		}
		seen = version(t, e.Object)
	}
	if _, open := <-w.ResultChan(); open {
		t.Error("the watch goes on after its error")
	}
}

func TestRequestWatchProgressSendsBookmarkNow(t *testing.T) {
	ctx, s, kv := setUp(t, func(c *Config) { c.ProgressInterval = time.Hour })
	start := create(t, s, pod("ns", "a")).ResourceVersion
	w := startWatch(t, s, start, func(o *storage.ListOptions) { o.ProgressNotify = true })
	increaseRV(kv)(ctx, t)
	if err := s.RequestWatchProgress(ctx); err != nil {
		t.Fatal(err)
	}
	e := receive(t, w)
	if want := kv.View().Revision(); e.Type != watch.Bookmark || version(t, e.Object) != itoa(want) {
		t.Errorf("got %s at %s, want a bookmark at %d", e.Type, version(t, e.Object), want)
	}
}

func TestBookmarksSkipWhatTheWatchDoesNotSee(t *testing.T) {
	ctx, s, kv := setUp(t, func(c *Config) { c.BookmarkInterval = 50 * time.Millisecond })
	start := create(t, s, pod("ns", "a")).ResourceVersion
	w := startWatch(t, s, start, func(o *storage.ListOptions) { o.Predicate.AllowWatchBookmarks = true })
	rev := increaseRV(kv)(ctx, t)
	if e := receive(t, w); e.Type != watch.Bookmark || version(t, e.Object) != itoa(rev) {
		t.Errorf("got %s at %s, want a bookmark at %d", e.Type, version(t, e.Object), rev)
	}
	// Nothing happened since: the next event is the pod, not another bookmark.
	timer := time.NewTimer(300 * time.Millisecond)
	select {
	case e := <-w.ResultChan():
		t.Errorf("event %s although nothing happened", e.Type)
	case <-timer.C:
	}
	created := create(t, s, pod("ns", "b"))
	if e := receive(t, w); e.Type != watch.Added || version(t, e.Object) != created.ResourceVersion {
		t.Errorf("got %s at %s, want the pod created", e.Type, version(t, e.Object))
	}
}

func TestWatchFromTheFutureBeginsThere(t *testing.T) {
	ctx, s, kv := setUp(t)
	create(t, s, pod("ns", "a"))
	w := startWatch(t, s, itoa(kv.View().Revision()+2))
	create(t, s, pod("ns", "early"))
	increaseRV(kv)(ctx, t)
	create(t, s, pod("ns", "late"))
	e := receive(t, w)
	if name := e.Object.(k8sruntime.CacheableObject).GetObject().(*example.Pod).Name; name != "late" {
		t.Errorf("first event is of %q, want late", name)
	}
}

func TestMemosStayWithinBudgetAndKeepWhatIsUsed(t *testing.T) {
	m := NewMemos(80)
	all := make([]*decoded, 30)
	for i := range all {
		all[i] = &decoded{size: 10}
		m.keep(all[i])
		all[0].used.Store(true)
		if m.bytes > m.budget {
			t.Fatalf("%d bytes kept, budget %d", m.bytes, m.budget)
		}
	}
	kept := map[*decoded]bool{}
	for e := m.queue.Front(); e != nil; e = e.Next() {
		kept[e.Value.(*decoded)] = true
	}
	if !kept[all[0]] || !kept[all[29]] || kept[all[1]] || len(kept) != 8 {
		t.Errorf("kept %d, in use %v, newest %v, oldest %v", len(kept), kept[all[0]], kept[all[29]], kept[all[1]])
	}
	m.keep(&decoded{size: 11})
	if m.bytes != 80 {
		t.Error("an object of more than an eighth of the budget was kept")
	}
}

func TestWhatReadersGetIsTheirs(t *testing.T) {
	ctx, s, _ := setUp(t)
	p := pod("ns", "a")
	p.Labels = map[string]string{"k": "v"}
	create(t, s, p)
	w := startWatch(t, s, "0")
	receive(t, w) // decoded and kept
	kv := s.kv.View().Get("/pods/ns/a")
	if s.reader.cached(kv) == nil {
		t.Fatal("nothing is kept decoded")
	}
	out := &example.Pod{}
	if err := s.Get(ctx, "/pods/ns/a", storage.GetOptions{}, out); err != nil {
		t.Fatal(err)
	}
	out.Labels["k"] = "changed"
	err := s.GuaranteedUpdate(ctx, "/pods/ns/a", &example.Pod{}, false, nil, func(obj k8sruntime.Object, _ storage.ResponseMeta) (k8sruntime.Object, *uint64, error) {
		obj.(*example.Pod).Labels["k"] = "changed too"
		return nil, nil, io.EOF
	}, nil)
	if err != io.EOF {
		t.Fatal(err)
	}
	again := &example.Pod{}
	if err := s.Get(ctx, "/pods/ns/a", storage.GetOptions{}, again); err != nil {
		t.Fatal(err)
	}
	if again.Labels["k"] != "v" {
		t.Errorf("a reader's change reached others: %v", again.Labels)
	}
}

func itoa(rev int64) string { return strconv.FormatInt(rev, 10) }
