package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netns"
	"k8s.io/client-go/util/cert"

	"github.com/balsahq/balsa/e2e/figures"
)

var tunnelMiB = flag.Int("tunnel-mib", 0, "how much is copied to compare the ways to a node; 0: nothing")

// outside drops all packets from outside on a host's eth0 except answers to the host, as a router or a firewall in
// front of it does.
func (c *cluster) outside() error {
	return c.firewall(func(conn *nftables.Conn, table *nftables.Table) {
		chain := conn.AddChain(&nftables.Chain{
			Name: "in", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle,
		})
		eth0 := make([]byte, 16)
		copy(eth0, "eth0")
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: eth0},
			&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitNEW), Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
			&expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}})
	})
}

// inside removes the rules of outside.
func (c *cluster) inside() error { return c.firewall(func(*nftables.Conn, *nftables.Table) {}) }

func (c *cluster) firewall(fill func(*nftables.Conn, *nftables.Table)) error {
	ns, err := netns.GetFromName(c.Name)
	if err != nil {
		return err
	}
	defer ns.Close()
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	if err != nil {
		return err
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "outside"})
	conn.DelTable(table)
	fill(conn, conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "outside"}))
	return conn.Flush()
}

const behindPods = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: a, image: "balsahq/hello:1", ports: [{containerPort: 8080}]}
  - {name: clock, image: "balsahq/hello:1", command: [sh, -c, "while true; do echo tick; sleep 0.2; done"]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// TestANodeThatServersCannotReach: the servers take no pods and have no route to them, and no connection that they open
// reaches the node. All requests about pods still work through each server, also after restarts.
func TestANodeThatServersCannotReach(t *testing.T) {
	s := newSeveral(t, 3, 1, 0)
	server, agent := s.servers[0], s.agents[0]
	s.must(agent.outside())
	s.form()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if conn, err := server.Dial(ctx, "tcp", net.JoinHostPort(agent.Addr.String(), "10250")); err == nil {
		conn.Close()
		t.Fatal("the server reaches the node directly: nothing is tested")
	}
	server.apply(behindPods)
	server.kubectl("wait", "--for=condition=Ready", "--timeout=90s", "pod/web")
	for _, c := range s.servers {
		c.eventually("the node is reached", func() error { return usable(c, agent) })
		if !strings.Contains(c.Log(), agent.NodeName()+"'s API") {
			t.Errorf("%s does not say that it reaches the node by the node's connection:\n%s", c.NodeName(), tail(c.Log(), 20))
		}
	}
	hook := validate(server, agent)

	t.Run("an agent restarts", func(t *testing.T) {
		before := server.inBackground("logs", "-f", "--tail=1", "web", "-c", "clock")
		server.eventually("the log is followed", before.says("tick"))
		s.must(agent.Process().Stop(30 * time.Second))
		if out := server.refused("exec", "web", "-c", "a", "--", "cat", "/etc/hostname"); !strings.Contains(out, agent.NodeName()) {
			t.Errorf("while the agent is away: %s", out)
		}
		s.must(agent.Start("agent"))
		server.eventually("everything works again", func() error { return usable(server, agent) })
		server.eventually("the webhook is asked again", hook)
	})
	t.Run("the server restarts", func(t *testing.T) {
		s.must(server.Process().Stop(30 * time.Second))
		s.must(server.Start("server"))
		s.ready(server)
		server.eventually("everything works again", func() error { return usable(server, agent) })
		server.eventually("the webhook is asked again", hook)
	})
	if *tunnelMiB > 0 {
		compare(s)
	}
}

// usable does what people do with a pod; its error is the first one.
func usable(server, agent *cluster) error {
	name := agent.NodeName()
	file := filepath.Join(server.t.TempDir(), "file")
	if err := os.WriteFile(file, bytes.Repeat([]byte("balsa\n"), 1<<18), 0o600); err != nil {
		return err
	}
	for _, step := range []func() error{
		server.wants("listening on", "logs", "web", "-c", "a"),
		server.wants("listening on", "logs", "web", "-c", "a", "--insecure-skip-tls-verify-backend"),
		server.wants("hello", "exec", "web", "-c", "a", "--", "sh", "-c", "echo hello"),
		server.wants("", "cp", "-c", "a", file, "web:/copied"),
		server.wants("", "cp", "-c", "a", "web:/copied", file+".back"),
		func() error { return same(file, file+".back") },
		server.wants("ok", "get", "--raw", "/api/v1/nodes/"+name+"/proxy/healthz"),
		server.wants("web", "get", "--raw", "/api/v1/nodes/"+name+"/proxy/pods"),
		server.wants("pod: web", "get", "--raw", "/api/v1/namespaces/default/pods/web:8080/proxy/"),
		server.wants("pod: web", "get", "--raw", "/api/v1/namespaces/default/services/web:80/proxy/"),
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return forwarded(server)
}

func same(a, b string) error {
	x, err := os.ReadFile(a)
	if err != nil {
		return err
	}
	y, err := os.ReadFile(b)
	if err == nil && !bytes.Equal(x, y) {
		err = fmt.Errorf("%d bytes came back of %d", len(y), len(x))
	}
	return err
}

// forwarded follows a log, and meanwhile sends a request through a forwarded port.
func forwarded(server *cluster) error {
	log := server.inBackground("logs", "-f", "--tail=1", "web", "-c", "clock")
	defer log.end()
	forward := server.inBackground("port-forward", "pod/web", ":8080")
	defer forward.end()
	server.eventually("a port is forwarded", forward.says("Forwarding from 127.0.0.1:"))
	_, rest, _ := strings.Cut(forward.String(), "127.0.0.1:")
	port, _, _ := strings.Cut(rest, " ")
	for range 3 {
		answer, err := server.HTTP().Get("http://127.0.0.1:" + port)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || !bytes.Contains(body, []byte("pod: web")) {
			return fmt.Errorf("by a forwarded port: %q, %w", body, err)
		}
	}
	server.eventually("the log is followed", log.says("tick\ntick\ntick"))
	return nil
}

// validate runs a webhook on the agent's host, behind a Service, that validates ConfigMaps. It returns a check that the
// webhook is called and its answer counts.
func validate(server, agent *cluster) func() error {
	t := server.t
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("judge.default.svc", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := agent.Listen("tcp", net.JoinHostPort(agent.Addr.String(), "9443"))
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	web := &http.Server{TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var review struct {
			Request struct{ UID, Name string }
		}
		err := json.NewDecoder(r.Body).Decode(&review)
		fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":%v,"status":{"message":"judged on the node"}}}`,
			review.Request.UID, err == nil && review.Request.Name != "bad")
	})}
	ended := make(chan error, 1)
	go func() { ended <- web.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { web.Close(); <-ended })
	server.apply(fmt.Sprintf(judge, agent.Addr, agent.NodeName(), base64.StdEncoding.EncodeToString(certPEM)))
	check := func() error {
		before := asked.Load()
		if out, err := server.Kubectl(t.Context(), "create", "configmap", "good", "--dry-run=server"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		out, err := server.Kubectl(t.Context(), "create", "configmap", "bad", "--dry-run=server")
		if err == nil || !strings.Contains(err.Error(), "judged on the node") {
			return fmt.Errorf("want a refusal of the webhook: %v %s", err, out)
		}
		if n := asked.Load() - before; n < 2 {
			return fmt.Errorf("the webhook was asked %d times", n)
		}
		return nil
	}
	server.eventually("the webhook is asked", check)
	return check
}

const judge = `
apiVersion: v1
kind: Service
metadata: {name: judge}
spec: {ports: [{port: 443, targetPort: 9443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: judge, labels: {kubernetes.io/service-name: judge}}
addressType: IPv4
endpoints: [{addresses: [%s], nodeName: %s, conditions: {ready: true}}]
ports: [{port: 9443}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: judge}
webhooks:
- name: judge.example.com
  clientConfig: {service: {name: judge, namespace: default}, caBundle: %s}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
  failurePolicy: Fail
  sideEffects: None
  timeoutSeconds: 5
  admissionReviewVersions: [v1]
`

// compare copies data into a pod and out of it, through the node's connection and directly, and reports the speed and
// the CPU time of each.
func compare(s *several) {
	server, agent := s.servers[0], s.agents[0]
	big := filepath.Join(s.t.TempDir(), "big")
	s.must(os.WriteFile(big, make([]byte, *tunnelMiB<<20), 0o600))
	copied := func(way string, args ...string) {
		used := func(c *cluster) float64 { return figures.CPUTime([]int{c.Process().PID}).Seconds() }
		begin, atServer, atAgent := time.Now(), used(server), used(agent)
		server.kubectl(append([]string{"cp", "-c", "a"}, args...)...)
		atServer, atAgent = used(server)-atServer, used(agent)-atAgent
		size := float64(*tunnelMiB)
		s.t.Logf("kubectl cp %s: %.0f MiB/s; CPU ms a MiB: server %.1f, agent %.1f", way, size/time.Since(begin).Seconds(), 1e3*atServer/size, 1e3*atAgent/size)
	}
	copyOut := func(way string) {
		for range 3 {
			copied("in "+way, big, "web:/big")
			copied("out "+way, "web:/big", big)
		}
	}
	copyOut("by the node's connection")
	s.must(errors.Join(agent.inside(), server.Process().Stop(30*time.Second), server.Start("server", "--node-tunnel=never")))
	s.ready(server)
	copyOut("directly")
}
