package nodesetup

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/process"
)

// nodeWatches is a client whose watches of Nodes are what answer returns for the first, the second and so on.
func nodeWatches(answer func(number int) (watch.Interface, error)) *fake.Clientset {
	client, number := fake.NewClientset(), 0
	client.PrependWatchReactor("nodes", func(clienttesting.Action) (bool, watch.Interface, error) {
		number++
		w, err := answer(number)
		return true, w, err
	})
	return client
}

func watchOf(object runtime.Object) watch.Interface {
	w := watch.NewFakeWithChanSize(1, false)
	w.Add(object)
	return w
}

func endedWatch() watch.Interface {
	w := watch.NewFake()
	w.Stop()
	return w
}

func TestTheNodeMilestoneOutlastsServersThatAreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ready := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		}}
		const refused, ended = 20, 5
		var asked int
		client := nodeWatches(func(number int) (watch.Interface, error) {
			asked = number
			switch {
			case number <= refused:
				return nil, errors.New("connection refused")
			case number <= refused+ended:
				return endedWatch(), nil
			}
			return watchOf(ready), nil
		})
		a := Node{
			Config: &config.Node{NodeName: "node-1"}, Logger: slog.New(slog.DiscardHandler), Client: client,
			Progress: process.NewProgress(process.MilestoneNode),
		}
		ctx, cancel := context.WithCancel(t.Context())
		began, returned := time.Now(), make(chan error, 1)
		go func() { returned <- a.awaitNode(ctx) }()
		select {
		case <-a.Progress.Done():
		case err := <-returned:
			t.Fatalf("the milestone's part ended: %v", err)
		}
		if took := time.Since(began); asked != refused+ended+1 || took < time.Minute || took > refused*15*time.Second {
			t.Errorf("%d watches in %v", asked, took)
		}
		cancel()
		if err := <-returned; err != nil {
			t.Error(err)
		}
	})
}

func TestTheNodeMilestoneEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := nodeWatches(func(int) (watch.Interface, error) { return nil, errors.New("connection refused") })
		a := Node{
			Config: &config.Node{NodeName: "node-1"}, Logger: slog.New(slog.DiscardHandler), Client: client,
			Progress: process.NewProgress(process.MilestoneNode),
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := a.awaitNode(ctx); err != nil || ctx.Err() == nil {
			t.Errorf("ended with %v before its context", err)
		}
	})
}
