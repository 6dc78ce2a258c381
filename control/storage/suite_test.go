package storage

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/klog/v2"

	"github.com/balsahq/balsa/raftstore"
)

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

// storedPrefix is what the tests' transformer puts before stored bytes.
const storedPrefix = "test!"

func TestMain(m *testing.M) {
	flag.Parse()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// newRaftstore runs a store in memory until the test ends.
func newRaftstore(t testing.TB) *raftstore.Store {
	t.Helper()
	kv, err := raftstore.Open(raftstore.Config{InMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- kv.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("raftstore: %v", err)
		}
	})
	if _, err := kv.Barrier(ctx); err != nil {
		t.Fatal(err)
	}
	return kv
}

// setUp returns the storage of example pods on a store of its own; change may
// alter its configuration.
func setUp(t testing.TB, change ...func(*Config)) (context.Context, *store, *raftstore.Store) {
	t.Helper()
	kv := newRaftstore(t)
	c := Config{
		Store:          kv,
		Codec:          apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion),
		NewFunc:        func() runtime.Object { return &example.Pod{} },
		NewListFunc:    func() runtime.Object { return &example.PodList{} },
		ResourcePrefix: "/pods/",
		GroupResource:  schema.GroupResource{Resource: "pods"},
		Transformer:    storagetesting.NewPrefixTransformer([]byte(storedPrefix), false),
	}
	for _, f := range change {
		f(&c)
	}
	return context.Background(), newStore(c), kv
}

// setTransformer changes how s reads and writes bytes and returns the way back.
// Nothing decoded with the old transformer is used with the new one.
func (s *store) setTransformer(t value.Transformer) func() {
	old := s.reader
	s.reader = newReader(s.Codec, t, s.Memos)
	return func() { s.reader = old }
}

// changeable lets upstream's tests swap the transformer.
type changeable struct{ *store }

func (s changeable) UpdatePrefixTransformer(modify storagetesting.PrefixTransformerModifier) func() {
	t := *s.reader.transformer.(*storagetesting.PrefixTransformer)
	return s.setTransformer(modify(&t))
}

func (s changeable) CorruptTransformer() func() {
	return s.setTransformer(brokenTransformer{s.reader.transformer})
}

// brokenTransformer reads nothing.
type brokenTransformer struct{ value.Transformer }

func (brokenTransformer) TransformFromStorage(context.Context, []byte, value.Context) ([]byte, bool, error) {
	return nil, false, errors.New("bits flipped")
}

// stored checks that neither resourceVersion nor selfLink is in the bytes.
func stored(kv *raftstore.Store, codec runtime.Codec) storagetesting.KeyValidation {
	return func(_ context.Context, t *testing.T, key string) {
		got := kv.View().Get(key)
		if got == nil {
			t.Fatalf("nothing stored at %s", key)
		}
		obj, err := runtime.Decode(codec, got.Value[len(storedPrefix):])
		if err != nil {
			t.Fatalf("decode what is stored at %s: %v", key, err)
		}
		if pod := obj.(*example.Pod); pod.ResourceVersion != "" || pod.SelfLink != "" {
			t.Errorf("stored: resourceVersion %q, selfLink %q; want neither", pod.ResourceVersion, pod.SelfLink)
		}
	}
}

// compactStore compacts and, as etcd's compactor does, writes a key of its own,
// which upstream's tests count on.
func compactStore(kv *raftstore.Store) storagetesting.Compaction {
	return func(ctx context.Context, t *testing.T, resourceVersion string) {
		rev, err := storage.APIObjectVersioner{}.ParseResourceVersion(resourceVersion)
		if err != nil {
			t.Fatal(err)
		}
		increaseRV(kv)(ctx, t)
		if err := kv.Compact(ctx, int64(rev)); err != nil {
			t.Fatal(err)
		}
	}
}

func increaseRV(kv *raftstore.Store) storagetesting.IncreaseRVFunc {
	return func(ctx context.Context, t *testing.T) int64 {
		r, err := kv.Txn(ctx, raftstore.Txn{Success: []raftstore.Op{{Type: raftstore.OpPut, Key: "increaseRV", Value: []byte("ok")}}})
		if err != nil {
			t.Fatal(err)
		}
		return r.Revision
	}
}

// atMost checks that a list decoded no more objects than it had to look at;
// fewer is what Memos is for.
func atMost(s *store) storagetesting.CallsValidation {
	transformer := s.reader.transformer.(*storagetesting.PrefixTransformer)
	return func(t *testing.T, _, objects uint64) {
		if reads := transformer.GetReadsAndReset(); reads > objects {
			t.Errorf("%d objects decoded for %d looked at", reads, objects)
		}
	}
}

// env is what a conformance test runs on.
type env struct {
	ctx context.Context
	s   *store
	kv  *raftstore.Store
}

// conformance maps upstream's acceptance tests of a storage.Interface to how
// they are run here. TestConformanceIsComplete compares it with their source.
var conformance = map[string]func(*testing.T, env){
	"RunTestCreate":                                     func(t *testing.T, e env) { storagetesting.RunTestCreate(e.ctx, t, e.s, stored(e.kv, e.s.Codec)) },
	"RunTestCreateWithTTL":                              plain(storagetesting.RunTestCreateWithTTL),
	"RunTestCreateWithKeyExist":                         plain(storagetesting.RunTestCreateWithKeyExist),
	"RunTestGet":                                        plain(storagetesting.RunTestGet),
	"RunTestUnconditionalDelete":                        plain(storagetesting.RunTestUnconditionalDelete),
	"RunTestConditionalDelete":                          plain(storagetesting.RunTestConditionalDelete),
	"RunTestDeleteWithSuggestion":                       plain(storagetesting.RunTestDeleteWithSuggestion),
	"RunTestDeleteWithSuggestionAndConflict":            plain(storagetesting.RunTestDeleteWithSuggestionAndConflict),
	"RunTestDeleteWithConflict":                         plain(storagetesting.RunTestDeleteWithConflict),
	"RunTestDeleteWithSuggestionOfDeletedObject":        plain(storagetesting.RunTestDeleteWithSuggestionOfDeletedObject),
	"RunTestValidateDeletionWithSuggestion":             plain(storagetesting.RunTestValidateDeletionWithSuggestion),
	"RunTestValidateDeletionWithOnlySuggestionValid":    plain(storagetesting.RunTestValidateDeletionWithOnlySuggestionValid),
	"RunTestPreconditionalDeleteWithSuggestion":         plain(storagetesting.RunTestPreconditionalDeleteWithSuggestion),
	"RunTestPreconditionalDeleteWithOnlySuggestionPass": plain(storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass),
	"RunTestList": func(t *testing.T, e env) {
		storagetesting.RunTestList(e.ctx, t, e.s, compactStore(e.kv), false, nil)
	},
	"RunTestConsistentList": func(t *testing.T, e env) {
		storagetesting.RunTestConsistentList(e.ctx, t, e.s, increaseRV(e.kv), false, true, false)
	},
	"RunTestGetListNonRecursive": func(t *testing.T, e env) {
		storagetesting.RunTestGetListNonRecursive(e.ctx, t, increaseRV(e.kv), e.s)
	},
	"RunTestGetListRecursivePrefix": plain(storagetesting.RunTestGetListRecursivePrefix),
	"RunTestListContinuation": func(t *testing.T, e env) {
		storagetesting.RunTestListContinuation(e.ctx, t, e.s, atMost(e.s))
	},
	"RunTestListPaginationRareObject": func(t *testing.T, e env) {
		storagetesting.RunTestListPaginationRareObject(e.ctx, t, e.s, atMost(e.s))
	},
	"RunTestListContinuationWithFilter": func(t *testing.T, e env) {
		storagetesting.RunTestListContinuationWithFilter(e.ctx, t, e.s, atMost(e.s))
	},
	"RunTestListInconsistentContinuation": func(t *testing.T, e env) {
		storagetesting.RunTestListInconsistentContinuation(e.ctx, t, e.s, compactStore(e.kv))
	},
	"RunTestListResourceVersionMatch": func(t *testing.T, e env) {
		storagetesting.RunTestListResourceVersionMatch(e.ctx, t, changeable{e.s})
	},
	"RunTestGuaranteedUpdate": func(t *testing.T, e env) {
		storagetesting.RunTestGuaranteedUpdate(e.ctx, t, changeable{e.s}, stored(e.kv, e.s.Codec))
	},
	"RunTestGuaranteedUpdateWithTTL": plain(storagetesting.RunTestGuaranteedUpdateWithTTL),
	"RunTestGuaranteedUpdateChecksStoredData": func(t *testing.T, e env) {
		storagetesting.RunTestGuaranteedUpdateChecksStoredData(e.ctx, t, changeable{e.s})
	},
	"RunTestGuaranteedUpdateWithConflict":              plain(storagetesting.RunTestGuaranteedUpdateWithConflict),
	"RunTestGuaranteedUpdateWithSuggestionAndConflict": plain(storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict),
	"RunTestTransformationFailure": func(t *testing.T, e env) {
		storagetesting.RunTestTransformationFailure(e.ctx, t, changeable{e.s})
	},
	"RunTestStats": func(t *testing.T, e env) {
		storagetesting.RunTestStats(e.ctx, t, e.s, e.s.Codec, e.s.reader.transformer, false)
		keys := func(context.Context) ([]string, error) { return nil, errors.New("not called") }
		if err := e.s.EnableResourceSizeEstimation(keys); err != nil {
			t.Fatal(err)
		}
		storagetesting.RunTestStats(e.ctx, t, e.s, e.s.Codec, e.s.reader.transformer, true)
	},
	"RunTestListPaging":          plain(storagetesting.RunTestListPaging),
	"RunTestNamespaceScopedList": plain(storagetesting.RunTestNamespaceScopedList),
	"RunTestCompactRevision": func(t *testing.T, e env) {
		storagetesting.RunTestCompactRevision(e.ctx, t, e.s, increaseRV(e.kv), compactStore(e.kv))
	},
	"RunTestKeySchema": plain(storagetesting.RunTestKeySchema),

	"RunTestWatch": plain(storagetesting.RunTestWatch),
	"RunTestWatchFromZero": func(t *testing.T, e env) {
		storagetesting.RunTestWatchFromZero(e.ctx, t, e.s, compactStore(e.kv))
	},
	"RunTestDeleteTriggerWatch":   plain(storagetesting.RunTestDeleteTriggerWatch),
	"RunTestWatchFromNonZero":     plain(storagetesting.RunTestWatchFromNonZero),
	"RunTestDelayedWatchDelivery": plain(storagetesting.RunTestDelayedWatchDelivery),
	"RunTestWatchError":           func(t *testing.T, e env) { storagetesting.RunTestWatchError(e.ctx, t, changeable{e.s}) },
	"RunTestWatchWithUnsafeDelete": func(t *testing.T, e env) {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, true)
		storagetesting.RunTestWatchWithUnsafeDelete(e.ctx, t, changeable{e.s})
	},
	"RunTestWatchContextCancel":                 plain(storagetesting.RunTestWatchContextCancel),
	"RunTestWatcherTimeout":                     plain(storagetesting.RunTestWatcherTimeout),
	"RunTestWatchDeleteEventObjectHaveLatestRV": plain(storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV),
	"RunTestWatchInitializationSignal":          plain(storagetesting.RunTestWatchInitializationSignal),
	"RunOptionalTestProgressNotify": func(t *testing.T, e env) {
		storagetesting.RunOptionalTestProgressNotify(e.ctx, t, e.s, increaseRV(e.kv))
	},
	"RunTestClusterScopedWatch":   plain(storagetesting.RunTestClusterScopedWatch),
	"RunTestNamespaceScopedWatch": plain(storagetesting.RunTestNamespaceScopedWatch),
	// Upstream only its cache sends bookmarks to clients; here the storage does.
	"RunTestWatchDispatchBookmarkEvents": func(t *testing.T, e env) {
		storagetesting.RunTestWatchDispatchBookmarkEvents(e.ctx, t, e.s, true)
	},
	"RunTestOptionalWatchBookmarksWithCorrectResourceVersion": plain(storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion),
	"RunSendInitialEventsBackwardCompatibility":               plain(storagetesting.RunSendInitialEventsBackwardCompatibility),
	"RunWatchSemantics":                     plain(storagetesting.RunWatchSemantics),
	"RunWatchSemanticInitialEventsExtended": plain(storagetesting.RunWatchSemanticInitialEventsExtended),
	"RunWatchListMatchSingle":               plain(storagetesting.RunWatchListMatchSingle),
	"RunWatchErrorIsBlockingFurtherEvents": func(t *testing.T, e env) {
		storagetesting.RunWatchErrorIsBlockingFurtherEvents(e.ctx, t, changeable{e.s})
	},
}

func plain(run func(context.Context, *testing.T, storage.Interface)) func(*testing.T, env) {
	return func(t *testing.T, e env) { run(e.ctx, t, e.s) }
}

// TestConformance runs upstream's acceptance suite as storage normally works
// and with nothing decoded kept, so that both ways of reading are held to it.
func TestConformance(t *testing.T) {
	for name, run := range conformance {
		t.Run(name, func(t *testing.T) {
			for _, kept := range []struct {
				name   string
				budget int
			}{{"kept", DefaultMemoBytes}, {"decoded", 0}} {
				t.Run(kept.name, func(t *testing.T) {
					ctx, s, kv := setUp(t, func(c *Config) {
						c.Memos, c.ProgressInterval = NewMemos(kept.budget), time.Second
					})
					run(t, env{ctx, s, kv})
				})
			}
		})
	}
}
