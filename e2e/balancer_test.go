package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const balanced = `
apiVersion: v1
kind: ConfigMap
metadata: {name: balsa-load-balancer, namespace: kube-system}
data: {pools: %q}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: a, image: "balsahq/hello:1", resources: {requests: {cpu: 10m}}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: local}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: waiting}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`

// TestLoadBalancers: clients outside reach Services at addresses from a pool, also while the node that announces an
// address is unplugged. The nodes start with the cloud provider's taint.
func TestLoadBalancers(t *testing.T) {
	s := newSeveral(t, 1, 1, 1)
	s.agents = append(s.agents, newHostOn(t, s.spare[0], "--cloud-provider=external"))
	s.form()
	first := s.servers[0]
	external := s.agents[1].NodeName()
	first.eventually("the node is initialized", func() error {
		if err := first.wants("balsa://"+external, "get", "node", external, "-o", "jsonpath={.spec.providerID}")(); err != nil {
			return err
		}
		if taints := first.kubectl("get", "node", external, "-o", "jsonpath={.spec.taints}"); strings.Contains(taints, "uninitialized") {
			return errors.New(taints)
		}
		return nil
	})
	// Two addresses of the LAN for three Services.
	low := first.Addr.As4()
	low[3] = 200
	prefix := fmt.Sprintf("%d.%d.%d.", low[0], low[1], low[2])
	first.apply(fmt.Sprintf(balanced, prefix+"200-"+prefix+"201"))
	addresses := map[string]string{}
	for _, name := range []string{"web", "local"} {
		first.eventually(name+" has an address", func() error {
			if addresses[name] = first.kubectl("get", "service", name, "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}"); addresses[name] == "" {
				return errors.New("none")
			}
			return nil
		})
		s.served(addresses[name])
	}
	first.eventually("a Service waits", func() error { return first.wants("PoolExhausted", "describe", "service", "waiting")() })
	s.healthPorts()

	holder := s.holder(addresses["web"])
	began := time.Now()
	for _, m := range s.net.Machines {
		if m.Name == holder.Name {
			s.must(s.net.Unplug(m))
		}
	}
	s.served(addresses["web"])
	t.Logf("the node that announced %s was unplugged; %s later another one answers", addresses["web"], time.Since(began).Round(time.Millisecond))
	if now := s.holder(addresses["web"]); now == holder {
		t.Fatalf("%s is still at %s, which is unplugged", addresses["web"], now.NodeName())
	}
	s.must(s.net.Heal())
	first.eventually("it is back", func() error {
		if now := s.holder(addresses["web"]); now != holder {
			return fmt.Errorf("it is at %s", now.NodeName())
		}
		return nil
	})
	s.served(addresses["web"])

	first.kubectl("delete", "service", "web")
	first.eventually("who waited has the address", func() error {
		return first.wants(addresses["web"], "get", "service", "waiting", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")()
	})
	s.served(addresses["web"])
	first.kubectl("delete", "service", "local", "waiting")
}

// served waits until the client outside gets a page from the address.
func (s *several) served(address string) {
	s.t.Helper()
	s.servers[0].eventually("http://"+address, func() error {
		_, _, err := fetch(s.net.Client.Dial, "http://"+address)
		return err
	})
}

// holder returns the host whose link-layer address the client has for an address.
func (s *several) holder(address string) *cluster {
	s.t.Helper()
	var out *cluster
	s.servers[0].eventually("a neighbour with "+address, func() error {
		_, _, _ = fetch(s.net.Client.Dial, "http://"+address) // makes the client resolve the address
		entry, err := s.net.Client.Command(s.t.Context(), "ip", "neigh", "show", address).CombinedOutput()
		if err != nil {
			return err
		}
		for _, c := range s.agents {
			link, err := c.Command(s.t.Context(), "ip", "-j", "link", "show", "eth0").CombinedOutput()
			var parsed []struct{ Address string }
			if err = errors.Join(err, json.Unmarshal(link, &parsed)); err != nil {
				return err
			}
			if strings.Contains(string(entry), parsed[0].Address) {
				out = c
				return nil
			}
		}
		return fmt.Errorf("%q is no agent's", entry)
	})
	return out
}

// healthPorts reads on every node the health port of the Service with the policy Local, and the node's own.
func (s *several) healthPorts() {
	s.t.Helper()
	first := s.servers[0]
	var svc corev1.Service
	s.must(json.Unmarshal([]byte(first.kubectl("get", "service", "local", "-o", "json")), &svc))
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DialContext: s.net.Client.Dial, DisableKeepAlives: true}}
	for _, c := range s.agents {
		for _, port := range []int32{svc.Spec.HealthCheckNodePort, 10256} {
			first.eventually(fmt.Sprintf("%s is healthy at port %d", c.NodeName(), port), func() error {
				answer, err := client.Get(fmt.Sprintf("http://%s:%d/healthz", c.Addr, port))
				if err != nil {
					return err
				}
				defer answer.Body.Close()
				if answer.StatusCode != http.StatusOK {
					return errors.New(answer.Status)
				}
				return nil
			})
		}
	}
}
