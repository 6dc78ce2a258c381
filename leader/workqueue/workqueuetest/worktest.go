// Package workqueuetest owns what tests of controllers share: one controller, run
// against an API until the test ends.
package workqueuetest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/balsahq/balsa/leader/workqueue"
)

// patience is how long a busy machine may take for what is to happen.
const patience = time.Minute

// Start runs what build makes, with client for reading and writing, until the
// test ends, and returns the events it tells people.
func Start(t *testing.T, client kubernetes.Interface, build func(workqueue.Env) (workqueue.Runner, error)) <-chan string {
	t.Helper()
	factory := informers.NewSharedInformerFactory(client, 0)
	events := record.NewFakeRecorder(1000)
	runner, err := build(workqueue.Env{
		Name: t.Name(), Client: client, Reader: client, Informers: factory, Events: events, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	factory.StartWithContext(ctx)
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	})
	factory.WaitForCacheSync(ctx.Done())
	awaitWatches(t, client)
	return events.Events
}

// awaitWatches waits until all that was listed is watched: the fake API tells a
// new watch what was added or changed since its list, but not what was deleted.
func awaitWatches(t *testing.T, client kubernetes.Interface) {
	fake, ok := client.(interface{ Actions() []clienttesting.Action })
	if !ok {
		return
	}
	Eventually(t, "all that is listed is watched", func(context.Context) (bool, error) {
		unwatched := map[string]bool{}
		for _, a := range fake.Actions() {
			switch a.GetVerb() {
			case "list":
				unwatched[a.GetResource().String()] = true
			case "watch":
				delete(unwatched, a.GetResource().String())
			}
		}
		return len(unwatched) == 0, nil
	})
}

// Eventually waits until ok, and fails the test when it says an error or never does.
func Eventually(t *testing.T, what string, ok func(context.Context) (bool, error)) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, patience, true, ok); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
