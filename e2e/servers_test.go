package e2e

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

var pauseFor = flag.Duration("pause", 6*time.Second, "how long TestFencedAfterPause stops the leader")

// TestThreeServersTwoAgents kills each server in turn under a write load: no acknowledged write is lost, writes resume
// within a second, Deployments still follow their spec, and no container is restarted.
func TestThreeServersTwoAgents(t *testing.T) {
	s := newSeveral(t, 3, 2, 0)
	s.form()
	first := s.servers[0]
	first.apply(spread)
	first.kubectl("rollout", "status", "deployment/spread", "--timeout=90s")
	nodes := first.kubectl("get", "pods", "-l", "app=spread", "-o", "jsonpath={.items[*].spec.nodeName}")
	for _, a := range s.agents {
		if n := countWord(nodes, a.NodeName()); n != 2 {
			t.Errorf("%d of 4 pods are on %s: %s", n, a.NodeName(), nodes)
		}
	}
	for _, server := range s.servers {
		server.eventually("a server knows what all nodes and pods use", func() error {
			return errors.Join(server.topShows(countWord(server.kubectl("get", "nodes", "-o", "jsonpath={.items[*].kind}"), "Node"), "node"), server.topShows(4, "pod", "-l", "app=spread"))
		})
	}
	t.Run("an agent is hostile", func(t *testing.T) { hostileAgent(t, s) })
	for i, victim := range s.servers {
		led := s.leader() == victim
		other := s.servers[(i+1)%len(s.servers)]
		w := s.load()
		<-time.After(time.Second)
		w.longest()
		s.must(victim.Process().Kill9())
		replicas := 5 + i
		began := time.Now()
		other.eventually("the deployment is scaled", func() error {
			_, err := other.Kubectl(t.Context(), "scale", "deployment/spread", fmt.Sprintf("--replicas=%d", replicas))
			return err
		})
		other.kubectl("rollout", "status", "deployment/spread", "--timeout=60s")
		converged := time.Since(began)
		gap := w.longest()
		w.check()
		t.Logf("killed %s (leader: %v): longest gap in writes %.2f s, %d writes failed twice, %d acknowledged, deployment followed after %.2f s",
			victim.NodeName(), led, gap.Seconds(), w.twice, len(w.acknowledged), converged.Seconds())
		if gap > 30*time.Second {
			t.Errorf("nothing was written for %s after %s was killed", gap, victim.NodeName())
		}
		s.must(victim.Start("server"))
		s.ready(victim)
	}
	restarts := first.kubectl("get", "pods", "-l", "app=spread", "-o", "jsonpath={.items[*].status.containerStatuses[*].restartCount}")
	if countWord(restarts, "0") != 7 {
		t.Errorf("7 containers, never restarted, are wanted; the restart counts are %s", restarts)
	}
}

const spread = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: spread}
spec:
  replicas: 4
  selector: {matchLabels: {app: spread}}
  template:
    metadata: {labels: {app: spread}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: spread}}}
      containers: [{name: a, image: "balsahq/hello:1", resources: {requests: {cpu: 10m}}}]
`

// TestFencedAfterPause stops the leader in the middle of its controllers' work, lets another server take over and do
// that work, and resumes the first. Work that it had begun must not be done a second time.
func TestFencedAfterPause(t *testing.T) {
	s := newSeveral(t, 3, 0, 0)
	s.form()
	paused := s.leader()
	var other *cluster
	for _, c := range s.servers {
		if c != paused {
			other = c
		}
	}
	client := s.client(other)
	pods, err := s.clientWithin(other, 0).CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{})
	s.must(err)
	t.Cleanup(pods.Stop)
	const deployments, replicas = 12, 5
	apply := func(from, to int) {
		for i := from; i < to; i++ {
			other.eventually("a deployment is made", func() error {
				_, err := other.Kubectl(t.Context(), "create", "deployment", fmt.Sprintf("work-%d", i), "--image=none", fmt.Sprintf("--replicas=%d", replicas))
				return err
			})
		}
	}
	apply(0, deployments/2) // the leader is in the middle of its work
	s.must(paused.Process().Pause())
	stopped := time.Now()
	apply(deployments/2, deployments)
	other.eventually("another server leads and does the work", func() error {
		list, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) < deployments*replicas {
			err = fmt.Errorf("%d pods", len(list.Items))
		}
		return err
	})
	<-time.After(*pauseFor - time.Since(stopped))
	before, quiet := revisions(s, other), 0
	other.eventually("the work is done", func() error { // a busy computer may take long
		<-time.After(time.Second)
		was := before
		if before = revisions(s, other); !maps.Equal(was, before) {
			quiet = 0
			return errors.New("something is still written")
		}
		if quiet++; quiet < 4 {
			return errors.New("nothing was written for a while, and something may be yet")
		}
		return nil
	})
	s.must(paused.Process().Resume())
	woken := time.Now()
	<-time.After(3 * time.Second)
	s.ready(paused)
	after := revisions(s, other)
	for name, was := range before {
		if after[name] != was {
			t.Errorf("%s changed after the old leader woke: resourceVersion %s, then %s", name, was, after[name])
		}
	}
	for name := range after {
		if _, there := before[name]; !there {
			t.Errorf("%s was made after the old leader woke", name)
		}
	}
	made := 0
	for drained := false; !drained; {
		select {
		case e, ok := <-pods.ResultChan():
			if !ok {
				t.Fatal("the watch ended")
			}
			if e.Type == watch.Added {
				made++
			}
			if e.Type == watch.Deleted {
				t.Errorf("pod %s was deleted: somebody had made too many", e.Object.(*corev1.Pod).Name)
			}
		case <-time.After(time.Second):
			drained = true
		}
	}
	if made != deployments*replicas {
		t.Errorf("%d pods were ever made, want %d: the work was done once", made, deployments*replicas)
	}
	t.Logf("the leader was stopped for %s; %d pods were made, all once; it leads again: %v", woken.Sub(stopped).Round(time.Millisecond), made, s.leader() == paused)
}

// revisions returns the resourceVersions of all objects that controllers write. The nodes' own objects and leases
// change by themselves.
func revisions(s *several, c *cluster) map[string]string {
	s.t.Helper()
	ctx, client := s.t.Context(), s.clientWithin(c, time.Minute)
	out := map[string]string{}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	s.must(err)
	for _, o := range pods.Items {
		out["pod "+o.Namespace+"/"+o.Name] = o.ResourceVersion
	}
	sets, err := client.AppsV1().ReplicaSets("").List(ctx, metav1.ListOptions{})
	s.must(err)
	for _, o := range sets.Items {
		out["replicaset "+o.Namespace+"/"+o.Name] = o.ResourceVersion
	}
	list, err := client.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
	s.must(err)
	for _, o := range list.Items {
		out["deployment "+o.Namespace+"/"+o.Name] = o.ResourceVersion
	}
	return out
}
