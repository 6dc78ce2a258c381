package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

const (
	onlyFriends = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-friends}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {role: friend}}}]}]
`
	noWayOut = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: no-way-out}
spec:
  podSelector: {matchLabels: {app: hasty}}
  policyTypes: [Egress]
`
	// hasty sends requests from its first moment on, and counts the answers.
	hasty = `
apiVersion: v1
kind: Pod
metadata: {name: hasty-%[1]d, labels: {app: %[2]s}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - name: a
    image: balsahq/hello:1
    command: [sh, -c, 'n=0; i=0; while [ $i -lt 2 ]; do i=$((i+1)); if wget http://%[3]s:8080 >/dev/null 2>&1; then n=$((n+1)); fi; done; echo answered $n']
`
)

// TestNetworkPolicies: between real pods of several hosts, from a pod's first packet on, and while an agent is dead.
func TestNetworkPolicies(t *testing.T) {
	h := newHosts(t)
	h.works("everybody reaches everybody")
	server, near, far := h.all[0], h.all[2], h.all[1]
	reaches := func(from, to *cluster) error {
		_, _, err := fetch(h.pods[from].dial, fmt.Sprintf("http://%s:8080", h.pods[to].ip))
		return err
	}
	denied := func(from, to *cluster) func() error {
		return func() error {
			if reaches(from, to) == nil {
				return errors.New("a pod on " + from.NodeName() + " reaches one on " + to.NodeName())
			}
			return nil
		}
	}
	server.apply(onlyFriends)
	for _, to := range h.all {
		if to != near { // it reaches itself, whatever the policies say
			server.eventually("a policy closes the pods of "+to.NodeName(), denied(near, to))
		}
		server.eventually("the node "+to.NodeName()+" reaches its own pod", func() error {
			_, _, err := fetch(to.Dial, fmt.Sprintf("http://%s:8080", h.pods[to].ip))
			return err
		})
	}
	server.kubectl("label", "pod", h.pods[far].name, "role=friend")
	for _, to := range []*cluster{server, near} {
		server.eventually("a label opens "+to.NodeName(), func() error { return reaches(far, to) })
	}
	server.eventually("and the Service", func() error { _, _, err := fetch(h.pods[far].dial, h.web); return err })

	h.must(near.Process().Kill9())
	if reaches(server, near) == nil {
		t.Error("a dead agent leaves its pods open")
	}
	server.eventually("a dead agent leaves open what is allowed", func() error { return reaches(far, near) })
	h.must(near.Start("agent"))
	server.apply(noWayOut)
	server.kubectl("delete", "networkpolicy", "only-friends")
	server.eventually("all is open again", func() error { return reaches(server, near) })
	for i := range 4 {
		server.apply(fmt.Sprintf(hasty, i, "hasty", h.pods[server].ip))
	}
	server.apply(fmt.Sprintf(hasty, 9, "calm", h.pods[server].ip))
	for i, want := range map[int]string{0: "answered 0", 1: "answered 0", 2: "answered 0", 3: "answered 0", 9: "answered 2"} {
		name := fmt.Sprint("hasty-", i)
		server.eventually(name+" has tried", server.wants("Succeeded", "get", "pod", name, "-o", "jsonpath={.status.phase}"))
		if said := server.kubectl("logs", name); !strings.Contains(said, want) {
			t.Errorf("%s: %q, want %q", name, said, want)
		}
	}
}
