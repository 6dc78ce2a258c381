package storage

import (
	"fmt"
	"io"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"

	"github.com/balsahq/balsa/raftstore"
)

func BenchmarkStoreListCreate(b *testing.B) {
	for _, match := range []metav1.ResourceVersionMatch{metav1.ResourceVersionMatchNotOlderThan, metav1.ResourceVersionMatchExact} {
		b.Run("RV="+string(match), func(b *testing.B) {
			ctx, s, _ := setUp(b)
			storagetesting.RunBenchmarkStoreListCreate(ctx, b, s, match)
		})
	}
}

// BenchmarkStoreList is upstream's, with a tenth of its largest data set.
func BenchmarkStoreList(b *testing.B) {
	data := storagetesting.PrepareBenchchmarkData(50, 300, 500)
	ctx, s, kv := setUp(b)
	load(b, s, kv, data.Pods)
	storagetesting.RunBenchmarkStoreList(ctx, b, s, data, false)
}

func BenchmarkStoreStats(b *testing.B) {
	data := storagetesting.PrepareBenchchmarkData(50, 300, 500)
	ctx, s, kv := setUp(b)
	load(b, s, kv, data.Pods)
	storagetesting.RunBenchmarkStoreStats(ctx, b, s)
}

func BenchmarkCreate(b *testing.B) {
	ctx, s, _ := setUp(b)
	i := 0
	for b.Loop() {
		i++
		p := pod("ns", fmt.Sprintf("pod-%d", i))
		if err := s.Create(ctx, podKey(p), p, &example.Pod{}, 0); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	ctx, s, _ := setUp(b)
	create(b, s, pod("ns", "a"))
	for b.Loop() {
		if err := s.Get(ctx, "/pods/ns/a", storage.GetOptions{ResourceVersion: "0"}, &example.Pod{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGuaranteedUpdate(b *testing.B) {
	ctx, s, _ := setUp(b)
	create(b, s, pod("ns", "a"))
	for b.Loop() {
		err := s.GuaranteedUpdate(ctx, "/pods/ns/a", &example.Pod{}, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			obj.(*example.Pod).Generation++
			return obj, nil
		}), nil)
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWatchFanOut is one write seen and encoded by 100 watchers.
func BenchmarkWatchFanOut(b *testing.B) {
	ctx, s, _ := setUp(b)
	rv := create(b, s, pod("ns", "a")).ResourceVersion
	var watches []watch.Interface
	for range 100 {
		w, err := s.Watch(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything, ResourceVersion: rv})
		if err != nil {
			b.Fatal(err)
		}
		defer w.Stop()
		watches = append(watches, w)
	}
	encode := func(obj runtime.Object, w io.Writer) error { return s.Codec.Encode(obj, w) }
	i := 0
	for b.Loop() {
		i++
		p := pod("ns", fmt.Sprintf("pod-%d", i))
		if err := s.Create(ctx, podKey(p), p, nil, 0); err != nil {
			b.Fatal(err)
		}
		for _, w := range watches {
			e := <-w.ResultChan()
			if err := e.Object.(runtime.CacheableObject).CacheEncode("bench", encode, io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkGetList10k(b *testing.B) {
	ctx, s, kv := setUp(b)
	data := storagetesting.PrepareBenchchmarkData(100, 100, 100)
	load(b, s, kv, data.Pods)
	byNode := storagetesting.CreatePodPredicate(fields.OneTermEqualSelector("spec.nodeName", data.NodeNames[0]), true, []string{"spec.nodeName"})
	for _, c := range []struct {
		name string
		pred storage.SelectionPredicate
		memo int
	}{
		{"everything/kept", storage.Everything, DefaultMemoBytes},
		{"everything/decoded", storage.Everything, 0},
		{"one node of 100/kept", byNode, DefaultMemoBytes},
		{"page of 500", storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything(), Limit: 500}, DefaultMemoBytes},
	} {
		b.Run(c.name, func(b *testing.B) {
			s.Memos = NewMemos(c.memo)
			s.reader = newReader(s.Codec, s.reader.transformer, s.Memos)
			b.ReportAllocs()
			for b.Loop() {
				list := &example.PodList{}
				if err := s.GetList(ctx, "/pods/", storage.ListOptions{Recursive: true, Predicate: c.pred}, list); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// load writes pods, one revision each: upstream's benchmarks ask for revisions up
// to their number plus one.
func load(b *testing.B, s *store, kv *raftstore.Store, pods []*example.Pod) {
	b.Helper()
	for _, p := range pods {
		if err := s.Create(b.Context(), podKey(p), p, nil, 0); err != nil {
			b.Fatal(err)
		}
	}
	if got, want := kv.View().Revision(), int64(len(pods)+1); got < want {
		b.Fatalf("revision %d after %d writes", got, len(pods))
	}
}
