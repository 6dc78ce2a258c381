package control_test

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/audit"
	"github.com/balsahq/balsa/raftstore"
)

var masters = control.Identity{User: "system:test", Groups: []string{"system:masters"}}

// settles waits until fn holds.
func settles(t *testing.T, what string, fn func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !fn(); {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func TestInProcessClientReadsWritesAndWatches(t *testing.T) {
	ctx, ns := testContext(t), namespace(t)
	client := clientset(t, shared.Client(masters))
	w, err := client.CoreV1().ConfigMaps(ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	made, err := client.CoreV1().ConfigMaps(ns).Create(ctx, configMap("a", map[string]string{"big": strings.Repeat("x", 900_000)}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*corev1.ConfigMap).UID != made.UID {
		t.Errorf("event is %v", e.Type)
	}
	list, err := client.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || len(list.Items[0].Data["big"]) != 900_000 {
		t.Errorf("list: %v", err)
	}
	if _, err := client.CoreV1().ConfigMaps(ns).Get(ctx, "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get of nothing: %v", err)
	}
}

// An admission plug-in reads objects while a request is served, which is recorded.
func TestInProcessRequestInsideOfARequestThatIsAudited(t *testing.T) {
	server, err := start(t.TempDir(), func(c *control.Config) {
		c.Audit = audit.DefaultSettings()
		c.Audit.LogOptions.Path = filepath.Join(t.TempDir(), "audit.log")
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.stop() }()
	client, ctx, class := clientset(t, server.Client(masters)), testContext(t), "none"
	if _, err := client.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{RuntimeClassName: &class, Containers: []corev1.Container{{Name: "c", Image: "im"}}}}
	_, err = client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `RuntimeClass "none" not found`) {
		t.Error(err)
	}
}

func TestInProcessWatchEndsWithItsContext(t *testing.T) {
	client := clientset(t, shared.Client(masters))
	if first, err := client.CoreV1().Pods("").Watch(testContext(t), metav1.ListOptions{}); err != nil { // what begins with it and stays is not counted
		t.Fatal(err)
	} else {
		first.Stop()
	}
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(testContext(t))
	var watches []watch.Interface
	for range 50 {
		w, err := client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		watches = append(watches, w)
	}
	watches[0].Stop()
	if perWatch := float64(runtime.NumGoroutine()-before) / 50; perWatch > 6 {
		t.Errorf("a watch takes %.1f goroutines", perWatch)
	}
	cancel()
	for _, w := range watches {
		for range w.ResultChan() {
		}
	}
	// One of each would be fifty; the server does other things beside.
	settles(t, "goroutines of ended watches are gone", func() bool { return runtime.NumGoroutine() <= before+10 })
}

func TestInProcessRequestHonoursItsDeadline(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	_, err := clientset(t, shared.Client(masters)).CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

func TestFencedClientIsRefusedOnceItsTermHasPassed(t *testing.T) {
	ctx, ns := testContext(t), namespace(t)
	key := "/test/leader"
	result, err := shared.store.Txn(ctx, raftstore.Txn{Success: []raftstore.Op{{Type: raftstore.OpPut, Key: key, Value: []byte("me")}}})
	if err != nil {
		t.Fatal(err)
	}
	fence := raftstore.CreateRevisionIs(key, result.Revision)
	id := masters
	id.Fence = &fence
	maps := clientset(t, shared.Client(id)).CoreV1().ConfigMaps(ns)
	if _, err := maps.Create(ctx, configMap("during", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := shared.store.Txn(ctx, raftstore.Txn{Success: []raftstore.Op{{Type: raftstore.OpDelete, Key: key}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Create(ctx, configMap("after", nil), metav1.CreateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("create after the term: %v, want a conflict", err)
	}
	if err := maps.Delete(ctx, "during", metav1.DeleteOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("delete after the term: %v, want a conflict", err)
	}
	if _, err := maps.Get(ctx, "during", metav1.GetOptions{}); err != nil {
		t.Errorf("reads need no term: %v", err)
	}
}

func TestServerStopsCleanlyAndStartsAgainOnItsData(t *testing.T) {
	dir := t.TempDir()
	before := runtime.NumGoroutine()
	first, err := start(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	client := clientset(t, first.Client(masters))
	w, err := client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	remote := clientset(t, first.admin())
	remoteWatch, err := remote.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made, err := client.CoreV1().ConfigMaps("default").Create(ctx, configMap("kept", nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 30*time.Second { // requests that go on would have it wait for a minute
		t.Errorf("stopping took %v", took)
	}
	for range w.ResultChan() {
	}
	for range remoteWatch.ResultChan() {
	}
	if _, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); !errors.Is(err, control.ErrStopped) {
		t.Errorf("request to a stopped server: %v", err)
	}
	settles(t, "all goroutines of the server are gone", func() bool { return runtime.NumGoroutine() <= before+10 })

	second, err := start(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := clientset(t, second.Client(masters)).CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{})
	if err != nil || again.UID != made.UID || again.ResourceVersion != made.ResourceVersion {
		t.Errorf("after the restart: %v, %v", again, err)
	}
	if err := second.stop(); err != nil {
		t.Fatal(err)
	}
}

func TestConfigReportsEveryFault(t *testing.T) {
	err := control.Config{
		AdvertiseAddress: netip.MustParseAddr("127.0.0.1"), AdvertisePort: -1, ServiceCIDR: netip.MustParsePrefix("10.96.0.1/31"),
	}.Validate()
	for _, want := range []string{"Store must be set", "PKI must be set", "cannot be an endpoint", "is no port", "host bits", "fewer than 8"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}
