package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

var crashRounds = flag.Int("crash-rounds", 5, "how often TestCrashUnderLoad kills the server")

// TestCrashUnderLoad kills the server at random moments under a write load: no
// acknowledged write is lost, no container is restarted, and the cluster is
// ready again each time.
func TestCrashUnderLoad(t *testing.T) {
	c := start(t)
	c.kubectl("create", "deployment", "hello", "--image=balsahq/hello:1", "--replicas=3")
	c.kubectl("rollout", "status", "deployment/hello", "--timeout=60s")
	containers := func() string {
		return c.kubectl("get", "pods", "-l", "app=hello", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}{"\n"}{end}`)
	}
	before := containers()
	acknowledged := map[string]string{}
	for round := range *crashRounds {
		acknowledged = merge(acknowledged, writeUntilKilled(c, round))
		began := time.Now()
		c.up()
		t.Logf("round %d: %d writes acknowledged so far, ready again after %.2f s", round, len(acknowledged), time.Since(began).Seconds())
		verify(c, acknowledged)
	}
	c.kubectl("rollout", "status", "deployment/hello", "--timeout=60s")
	if after := containers(); after != before {
		t.Errorf("containers changed:\nbefore\n%s\nafter\n%s", before, after)
	}
	if !strings.Contains(before, "containerd://") {
		t.Errorf("no containers were compared: %s", before)
	}
}

func merge(a, b map[string]string) map[string]string {
	for k, v := range b {
		a[k] = v
	}
	return a
}

// writeUntilKilled lets eight clients create and update ConfigMaps and kills the server after a random time. It returns
// the newest acknowledged value of each. A write that was in progress when the server died may have taken effect or
// not; each attempt writes a value of its own.
func writeUntilKilled(c *cluster, round int) map[string]string {
	c.t.Helper()
	cfg, err := c.RESTConfig()
	if err != nil {
		c.t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	var mu sync.Mutex
	acknowledged := map[string]string{}
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				name := fmt.Sprintf("w-%d-%d-%d", round, w, n)
				obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"v": name}}
				if _, err := client.CoreV1().ConfigMaps("default").Create(ctx, obj, metav1.CreateOptions{}); err != nil {
					return
				}
				mu.Lock()
				acknowledged[name] = name
				mu.Unlock()
			}
		})
	}
	c.eventually("the first write is acknowledged", func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(acknowledged) == 0 {
			return errors.New("none is")
		}
		return nil
	})
	<-time.After(time.Duration(rand.IntN(1500)) * time.Millisecond) // a random moment is the purpose of this test
	if err := c.Kill9(); err != nil {
		c.t.Fatal(err)
	}
	writers.Wait()
	return acknowledged
}

// verify reads all values back.
func verify(c *cluster, acknowledged map[string]string) {
	c.t.Helper()
	cfg, err := c.RESTConfig()
	if err != nil {
		c.t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	list, err := client.CoreV1().ConfigMaps("default").List(c.t.Context(), metav1.ListOptions{})
	if apierrors.IsResourceExpired(err) || err != nil {
		c.t.Fatal(err)
	}
	found := map[string]string{}
	for _, item := range list.Items {
		found[item.Name] = item.Data["v"]
	}
	for name, value := range acknowledged {
		if found[name] != value {
			c.t.Errorf("acknowledged write lost: %s is %q, want %q", name, found[name], value)
		}
	}
}
