package e2e

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// rotationPods call the API all the time, as programs in pods do: with the token
// and the CA of their volume, which kubectl reads each time.
const rotationPods = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: caller}
spec:
  selector: {matchLabels: {app: caller}}
  template:
    metadata: {labels: {app: caller}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: a
        image: balsahq/hello:1
        command: [sh, -c, "while true; do if /host/kubectl auth whoami >/tmp/out 2>&1; then echo called; else echo FAILED; cat /tmp/out; fi; sleep 0.3; done"]
        volumeMounts: [{name: host, mountPath: /host}, {name: tmp, mountPath: /tmp}]
      volumes: [{name: host, hostPath: {path: KUBECTL}}, {name: tmp, emptyDir: {}}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: robot}
---
apiVersion: v1
kind: Secret
metadata: {name: robot-token, annotations: {kubernetes.io/service-account.name: robot}}
type: kubernetes.io/service-account-token
`

// TestRotation replaces the CA and the key of tokens of three servers and two
// agents under load. One agent is off all the time, a leader is killed in the
// first phase and another server in the second. No request fails, what was signed
// with the old keys is refused afterwards, and the agent finds back by itself.
func TestRotation(t *testing.T) {
	s := newSeveral(t, 3, 2, 1)
	s.form()
	first, off := s.servers[0], s.agents[1]
	dir, err := filepath.Abs(filepath.Dir(kubectlBinary))
	s.must(err)
	first.apply(strings.Replace(rotationPods, "KUBECTL", dir, 1))
	first.kubectl("rollout", "status", "daemonset/caller", "--timeout=90s")
	pod := first.kubectl("get", "pods", "-l", "app=caller", "--field-selector=spec.nodeName="+s.agents[0].NodeName(), "-o", "jsonpath={.items[0].metadata.name}")
	old := s.keepOldCredentials(pod)

	s.must(off.Process().Kill9())
	out, err := first.Balsa(t.Context(), "certificates", "rotate", "--ca", "--service-account-key")
	if err == nil || !strings.Contains(out+err.Error(), "--yes") {
		t.Errorf("without --yes: %v\n%s", err, out)
	}
	s.balsa("certificates", "rotate", "--ca", "--service-account-key", "--yes", "--grace=3s", "--detach")
	waits := "waits for agent " + off.NodeName()
	first.eventually("the rotation waits for the agent that is off", s.rotationSays("phase 1 of 3", waits))
	led := s.leader()
	s.must(led.Process().Kill9())
	s.must(led.Start("server"))
	s.ready(led)
	first.eventually("another leader waits, too", s.rotationSays("phase 1 of 3", waits))
	s.stillGood(old)

	victim, kept := s.leaveOneOut()
	load := s.loadThrough(kept, pod)
	s.balsa("certificates", "rotate", "--force", "--detach")
	kept[0].eventually("certificates are issued", s.rotationSays("phase 2 of 3"))
	s.must(victim.Process().Kill9())
	<-time.After(time.Second)
	s.must(victim.Start("server"))
	kept[0].eventually("the rotation is done", s.rotationSays(": done since", "did not wait for agent "+off.NodeName()))
	s.ready(victim)
	load.check()

	s.refuseOldCredentials(old)
	if out := first.kubectl("get", "configmap", "kube-root-ca.crt", "-o", `jsonpath={.data.ca\.crt}`); strings.Count(out, "BEGIN CERTIFICATE") != 1 {
		t.Errorf("kube-root-ca.crt holds more than the new CA:\n%s", out)
	}
	first.eventually("aggregated servers are told of the new CA alone", func() error {
		told := first.kubectl("get", "configmap", "extension-apiserver-authentication", "-n", "kube-system", "-o", "jsonpath={.data.client-ca-file}")
		if n := strings.Count(told, "BEGIN CERTIFICATE"); n != 1 {
			return fmt.Errorf("%d authorities", n)
		}
		return nil
	})
	for _, c := range s.servers {
		s.ready(c)
	}

	s.must(off.Start("agent"))
	first.eventually("the agent that was off is ready again", func() error {
		lines, err := first.Balsa(t.Context(), "members")
		if err != nil || !strings.Contains(lines, off.NodeName()) {
			return fmt.Errorf("%v\n%s", err, lines)
		}
		return first.wants("True", "get", "node", off.NodeName(), "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)()
	})
	pods := first.kubectl("get", "pods", "-l", "app=caller", "-o", "jsonpath={.items[*].metadata.name}")
	for _, name := range strings.Fields(pods) {
		first.eventually("logs of "+name, first.wants("called", "logs", name, "--tail=1"))
	}
}

// balsa runs a command that has to succeed on the first server.
func (s *several) balsa(args ...string) string {
	s.t.Helper()
	out, err := s.servers[0].Balsa(s.t.Context(), args...)
	if err != nil {
		s.t.Fatalf("balsa %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// rotationSays is a check that `balsa certificates status` on some server that
// runs contains the texts.
func (s *several) rotationSays(texts ...string) func() error {
	return func() error {
		var errs []error
		for _, c := range s.servers {
			if !c.Process().Running() {
				continue
			}
			out, err := c.Balsa(s.t.Context(), "certificates", "status")
			_, said, _ := strings.Cut(out, "\n\n")
			missing := false
			for _, text := range texts {
				missing = missing || !strings.Contains(said, text)
			}
			if err == nil && !missing {
				return nil
			}
			errs = append(errs, fmt.Errorf("%s: %v: %s", c.NodeName(), err, said))
		}
		return errors.Join(errs...)
	}
}

// leaveOneOut returns a server that does not lead, and the others.
func (s *several) leaveOneOut() (victim *cluster, others []*cluster) {
	s.t.Helper()
	leader := s.leader()
	for _, c := range s.servers {
		if victim == nil && c != leader && c != s.servers[0] {
			victim = c
		} else {
			others = append(others, c)
		}
	}
	return victim, others
}

// oldCredentials are copies of what the keys before a rotation have signed.
type oldCredentials struct {
	kubeconfig, agent, peer     string // files
	token, secretToken, joining string
}

func (s *several) keepOldCredentials(pod string) oldCredentials {
	s.t.Helper()
	first, dir := s.servers[0], s.t.TempDir()
	keep := func(from, name string) string {
		data, err := os.ReadFile(from)
		s.must(err)
		to := filepath.Join(dir, name)
		s.must(os.WriteFile(to, data, 0o600))
		return to
	}
	old := oldCredentials{
		kubeconfig: keep(first.Kubeconfig(), "kubeconfig"), agent: keep(filepath.Join(s.agents[0].DataDir, "agent", "node-client.pem"), "agent.pem"),
		peer:  keep(filepath.Join(s.servers[2].DataDir, "server", "tls", "peer.pem"), "peer.pem"),
		token: first.kubectl("exec", pod, "--", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token"),
	}
	first.eventually("the Secret holds a token", func() (err error) {
		old.secretToken, err = s.secretToken()
		return err
	})
	var err error
	old.joining, err = first.Token(s.t.Context(), "agent")
	s.must(err)
	return old
}

func (s *several) secretToken() (string, error) {
	encoded, err := s.servers[0].Kubectl(s.t.Context(), "get", "secret", "robot-token", "-o", "jsonpath={.data.token}")
	if err != nil || encoded == "" {
		return "", errors.Join(errors.New("no token"), err)
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	return string(raw), err
}

// uses are kubectl's arguments that use one credential each, on the first server.
func (s *several) uses(o oldCredentials) map[string][]string {
	bare := []string{"--kubeconfig=/dev/null", "--server=https://127.0.0.1:6443", "--insecure-skip-tls-verify"}
	with := func(args ...string) []string {
		return append(append(append([]string{}, bare...), args...), "auth", "whoami")
	}
	return map[string][]string{
		"kubeconfig":  {"--kubeconfig=" + o.kubeconfig, "auth", "whoami"},
		"agent":       with("--client-certificate="+o.agent, "--client-key="+o.agent),
		"token":       with("--token=" + o.token),
		"secretToken": with("--token=" + o.secretToken),
	}
}

// stillGood: before the old keys are retired, what they signed counts.
func (s *several) stillGood(o oldCredentials) {
	s.t.Helper()
	for name, args := range s.uses(o) {
		if out, err := s.servers[0].Kubectl(s.t.Context(), args...); err != nil {
			s.t.Errorf("the old %s is refused too early: %v\n%s", name, err, out)
		}
	}
	s.must(s.meets(s.servers[1], o.peer))
}

// refuseOldCredentials: afterwards none of them counts on any server, and what the
// new keys signed does.
func (s *several) refuseOldCredentials(o oldCredentials) {
	s.t.Helper()
	for _, c := range s.servers {
		for name, args := range s.uses(o) {
			c.eventually("the old "+name+" is refused by "+c.NodeName(), func() error {
				out, err := c.Kubectl(s.t.Context(), args...)
				if err == nil {
					return fmt.Errorf("it is accepted: %s", out)
				}
				if !strings.Contains(out+err.Error(), "nauthorized") && !strings.Contains(out+err.Error(), "must be logged in") {
					return fmt.Errorf("it is refused for another reason: %w\n%s", err, out)
				}
				return nil
			})
		}
		if c != s.servers[2] {
			if err := s.meets(c, o.peer); err == nil || !strings.Contains(err.Error(), "tls:") {
				s.t.Errorf("%s meets a peer with the old certificate: %v", c.NodeName(), err)
			}
			s.must(s.meets(c, filepath.Join(s.servers[2].DataDir, "server", "tls", "peer.pem")))
		}
	}
	token, err := s.secretToken()
	s.must(err)
	fresh := o
	fresh.secretToken = token
	if out := s.servers[0].kubectl(s.uses(fresh)["secretToken"]...); !strings.Contains(out, "system:serviceaccount:default:robot") {
		s.t.Errorf("the Secret's new token is somebody else's:\n%s", out)
	}
	late := newHostOn(s.t, s.spare[0])
	s.must(late.Start("agent", "--join="+s.servers[0].api(), "--token="+o.joining))
	late.eventually("the old join token is refused with advice", func() error {
		if log := late.Log(); !strings.Contains(log, "rotated after the token was made") {
			return errors.New(tail(log, 3))
		}
		return nil
	})
}

// meets dials a server as another server that has the certificate in a file.
func (s *several) meets(c *cluster, file string) error {
	pair, err := tls.LoadX509KeyPair(file, file)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	raw, err := s.net.Client.Dial(ctx, "tcp", c.api())
	if err != nil {
		return err
	}
	defer raw.Close()
	conn := tls.Client(raw, &tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }, InsecureSkipVerify: true, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13})
	if err := conn.HandshakeContext(ctx); err != nil {
		return err
	}
	// The server judges the certificate after the client's part of the handshake; then it speaks first.
	if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 9))
	return err
}

// rotationLoad are clients that write and read through servers that live, and
// exec and logs through the kubelet.
type rotationLoad struct {
	s      *several
	pod    string
	stop   func()
	mu     sync.Mutex
	counts map[string]int
	faults []string
}

func (s *several) loadThrough(servers []*cluster, pod string) *rotationLoad {
	ctx, cancel := context.WithCancel(s.t.Context())
	l := &rotationLoad{s: s, pod: pod, counts: map[string]int{}}
	var joined sync.WaitGroup
	for i, c := range servers {
		joined.Go(func() { l.use(ctx, c, i) })
	}
	joined.Go(func() { l.exec(ctx, servers[0]) })
	l.stop = sync.OnceFunc(func() { cancel(); joined.Wait() })
	s.t.Cleanup(l.stop)
	return l
}

func (l *rotationLoad) note(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.counts[what]++; err != nil {
		l.faults = append(l.faults, fmt.Sprintf("%s: %s: %v", time.Now().Format("15:04:05.000"), what, err))
	}
}

// use writes and reads with the kubeconfig of a server, read again when it
// changes, as people and controllers on servers have it.
func (l *rotationLoad) use(ctx context.Context, c *cluster, id int) {
	var read time.Time
	var client *kubernetes.Clientset
	for n := 0; ctx.Err() == nil; n++ {
		if info, err := os.Stat(c.Kubeconfig()); client == nil || err == nil && info.ModTime() != read {
			cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
			if err != nil {
				l.note("kubeconfig", err)
				return
			}
			cfg.Host, cfg.QPS, cfg.Timeout, read = "https://"+c.api(), -1, 30*time.Second, info.ModTime()
			cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				return l.s.net.Client.Dial(ctx, network, address)
			}
			if client, err = kubernetes.NewForConfig(cfg); err != nil {
				l.note("client", err)
				return
			}
		}
		err := put(ctx, client, fmt.Sprintf("rotation-%d-%d", id, n%20), fmt.Sprint(n))
		if ctx.Err() == nil {
			l.note("write through "+c.NodeName(), err)
		}
		_, err = client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{Limit: 10})
		if ctx.Err() == nil {
			l.note("read through "+c.NodeName(), err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func (l *rotationLoad) exec(ctx context.Context, c *cluster) {
	for ctx.Err() == nil {
		for _, args := range [][]string{{"exec", l.pod, "--", "cat", "/etc/hostname"}, {"logs", l.pod, "--tail=1"}} {
			out, err := c.Kubectl(ctx, args...)
			if ctx.Err() == nil {
				if err != nil {
					err = fmt.Errorf("%w: %s", err, out)
				}
				l.note(args[0], err)
			}
		}
	}
}

// check stops the clients: none of their requests, and none of the pod's, may have
// failed.
func (l *rotationLoad) check() {
	l.s.t.Helper()
	l.stop()
	l.s.t.Logf("requests: %v", l.counts)
	for _, fault := range l.faults {
		l.s.t.Error(fault)
	}
	log := l.s.servers[0].kubectl("logs", l.pod)
	// A server that was killed may refuse a connection until its endpoint is gone.
	log = strings.ReplaceAll(log, "FAILED\nThe connection to the server 10.96.0.1:443 was refused - did you specify the right host or port?\n", "")
	if n := countWord(log, "called"); n < 5 || strings.Contains(log, "FAILED") {
		l.s.t.Errorf("the pod called the API %d times, and not always with success:\n%s", n, tail(log, 20))
	}
	for _, what := range []string{"exec", "logs"} {
		if l.counts[what] == 0 {
			l.s.t.Errorf("no %s was tried", what)
		}
	}
}
