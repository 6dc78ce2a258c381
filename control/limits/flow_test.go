package limits_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/authn"
	"github.com/balsahq/balsa/control/controltest"
)

// start runs a server with two users who may do everything and are no administrators: those take no seat.
func start(t testing.TB, change ...func(*control.Config)) *controltest.Server {
	t.Helper()
	tokens := controltest.File(t, "tokens.csv", "good,good,1\nbad,bad,2\n")
	s := controltest.Start(t, append(change, func(c *control.Config) { c.Authentication = authn.Settings{TokenFile: tokens} })...)
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "all"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}}
	for _, u := range []string{"good", "bad"} {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{Kind: "User", Name: u, APIGroup: rbacv1.GroupName})
	}
	if _, err := s.Admin().RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return s
}

// client is an HTTP client of its own connections.
func client(s *controltest.Server) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.PKI.Pool()}, MaxIdleConnsPerHost: 100}}
}

func bearer(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

func TestTheDefaultObjectsAreKept(t *testing.T) {
	s := start(t)
	levels, schemas := s.Admin().FlowcontrolV1().PriorityLevelConfigurations(), s.Admin().FlowcontrolV1().FlowSchemas()
	names := func() (out []string) {
		all, err := schemas.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all.Items {
			out = append(out, f.Name)
		}
		return out
	}
	for _, want := range []string{"exempt", "catch-all", "probes", "system-nodes", "service-accounts", "global-default", "kube-controller-manager", "system-leader-election"} {
		if !slices.Contains(names(), want) {
			t.Errorf("%s is not in %v", want, names())
		}
	}
	// Upstream's part has seen them, and says whether their levels are there.
	controltest.Await(t, "a condition", func() bool {
		f, err := schemas.Get(t.Context(), "service-accounts", metav1.GetOptions{})
		return err == nil && len(f.Status.Conditions) == 1 && f.Status.Conditions[0].Status == flowcontrolv1.ConditionFalse
	})
	if err := schemas.Delete(t.Context(), "probes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controltest.Await(t, "the schema comes back", func() bool { return slices.Contains(names(), "probes") })
	change := func(name string, shares int) {
		patch := fmt.Sprintf(`{"spec":{"limited":{"nominalConcurrencyShares":%d}}}`, shares)
		if _, err := levels.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	shares := func(name string) int32 {
		l, err := levels.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return *l.Spec.Limited.NominalConcurrencyShares
	}
	change("workload-high", 77)
	controltest.Await(t, "the level is as it was", func() bool { return shares("workload-high") == 40 })
	// A suggested one that somebody takes over stays his.
	if _, err := levels.Patch(t.Context(), "workload-low", types.MergePatchType, []byte(`{"metadata":{"annotations":{"apf.kubernetes.io/autoupdate-spec":"false"}},"spec":{"limited":{"nominalConcurrencyShares":42}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	change("workload-high", 78)
	controltest.Await(t, "the keeper has looked again", func() bool { return shares("workload-high") == 40 })
	if n := shares("workload-low"); n != 42 {
		t.Errorf("what was taken over has %d shares", n)
	}
	if err := levels.Delete(t.Context(), "catch-all", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controltest.Await(t, "the mandatory level comes back", func() bool {
		_, err := levels.Get(t.Context(), "catch-all", metav1.GetOptions{})
		return err == nil
	})
	code, text := s.Ask(t, client(s), http.MethodGet, "/debug/api_priority_and_fairness/dump_priority_levels", bearer("good"), nil)
	if code != 200 || !strings.Contains(text, "workload-low") {
		t.Errorf("%d %s", code, text)
	}
	resp, err := request(t, s, "good", http.MethodGet, "/api/v1/namespaces", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID) == "" {
		t.Error("the answer does not say its flow schema")
	}
}

func request(t testing.TB, s *controltest.Server, token, method, path string, body io.Reader) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "https://"+s.Address+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = bearer(token)
	req.Header.Set("Content-Type", "application/json")
	return client(s).Do(req)
}

// crowd sends requests of one user from many connections until done; it returns how many were answered, and how many of
// them refused with 429 and Retry-After.
func crowd(ctx context.Context, s *controltest.Server, n int, token, path string) (answered, refused *atomic.Int64, wait func()) {
	answered, refused = &atomic.Int64{}, &atomic.Int64{}
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.PKI.Pool()}}}
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.Address+path, nil)
				if err != nil {
					return
				}
				req.Header = bearer(token)
				resp, err := c.Do(req)
				if err != nil {
					continue
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				answered.Add(1)
				if resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") != "" {
					refused.Add(1)
				}
			}
		})
	}
	return answered, refused, all.Wait
}

// TestAFloodOfOneUserStarvesNobodyElse: the level has two seats and short queues. The one who floods is refused; the other,
// whose flow has queues of its own, never is.
func TestAFloodOfOneUserStarvesNobodyElse(t *testing.T) {
	s := start(t, func(c *control.Config) { c.MaxReads, c.MaxWrites = 20, 10 })
	admin := s.Admin()
	one, zero := int32(1), int32(0)
	level := &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "narrow"}, Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
		Type: flowcontrolv1.PriorityLevelEnablementLimited, Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{NominalConcurrencyShares: &one, LendablePercent: &zero, BorrowingLimitPercent: &zero,
			LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeQueue, Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 64, HandSize: 4, QueueLengthLimit: 2}}}}}
	if _, err := admin.FlowcontrolV1().PriorityLevelConfigurations().Create(t.Context(), level, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	schema := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "narrow"}, Spec: flowcontrolv1.FlowSchemaSpec{MatchingPrecedence: 100,
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "narrow"}, DistinguisherMethod: &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
		Rules: []flowcontrolv1.PolicyRulesWithSubjects{{Subjects: []flowcontrolv1.Subject{{Kind: "User", User: &flowcontrolv1.UserSubject{Name: "good"}}, {Kind: "User", User: &flowcontrolv1.UserSubject{Name: "bad"}}},
			ResourceRules: []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, Namespaces: []string{"*"}, ClusterScope: true}}}}}}
	made, err := admin.FlowcontrolV1().FlowSchemas().Create(t.Context(), schema, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i)}, Data: map[string]string{"k": strings.Repeat("x", 4096)}}
		if _, err := admin.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	controltest.Await(t, "the schema counts", func() bool {
		resp, err := request(t, s, "good", http.MethodGet, "/api/v1/namespaces/default", nil)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID) == string(made.UID)
	})
	ctx, cancel := context.WithCancel(t.Context())
	answered, refused, wait := crowd(ctx, s, 30, "bad", "/api/v1/namespaces/default/configmaps")
	controltest.Await(t, "the crowd is refused", func() bool { return refused.Load() > 50 })
	good := s.Bearer("good").CoreV1().Namespaces()
	var took []time.Duration
	for range 15 {
		began := time.Now()
		if _, err := good.Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			t.Errorf("the other user: %v", err)
		}
		took = append(took, time.Since(began))
	}
	began := time.Now()
	if _, err := admin.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	exempt := time.Since(began)
	cancel()
	wait()
	slices.Sort(took)
	t.Logf("30 connections of one user: %d answers, %d of them 429; the other user: median %v, worst %v; the administrator: %v",
		answered.Load(), refused.Load(), took[len(took)/2], took[len(took)-1], exempt)
}

func TestStreamsOfOneClientAreBounded(t *testing.T) {
	const most = 40
	s := start(t, func(c *control.Config) { c.MaxStreams = most })
	open, refused := hold(t, s, "bad", most+20)
	if open != most || refused != 20 {
		t.Errorf("%d watches held and %d refused, want %d and 20", open, refused, most)
	}
	w, err := s.Bearer("good").CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatalf("another user: %v", err)
	}
	w.Stop()
	if _, err := s.Bearer("bad").CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a request that is no stream: %v", err)
	}
}

// hold opens n watches and tells how many stay and how many are refused with 429 and Retry-After. Those that stay end with
// the test.
func hold(t testing.TB, s *controltest.Server, token string, n int) (open, refused int) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.PKI.Pool()}, ForceAttemptHTTP2: true}}
	for range n {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.Address+"/api/v1/namespaces/default/configmaps?watch=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = bearer(token)
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case resp.StatusCode == http.StatusOK:
			open++
		case resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") == "10":
			refused++
		default:
			t.Fatal(resp.Status)
		}
		if resp.StatusCode != http.StatusOK {
			resp.Body.Close()
		} else {
			t.Cleanup(func() { resp.Body.Close() })
		}
	}
	return open, refused
}

func TestSlowBodiesAreBrokenOff(t *testing.T) {
	s := start(t)
	head := "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bad\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{"
	var all sync.WaitGroup
	for _, length := range []int{100, 1 << 20} { // what is read ahead of its seat, and what is not
		all.Go(func() {
			conn, err := tls.Dial("tcp", s.Address, &tls.Config{RootCAs: s.PKI.Pool(), NextProtos: []string{"http/1.1"}})
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprintf(conn, head, length)
			_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
			answer, err := io.ReadAll(conn)
			if !strings.HasPrefix(string(answer), "HTTP/1.1 408") || !strings.Contains(string(answer), "arrives too slowly") {
				t.Errorf("%d bytes: %q, %v", length, answer, err)
			}
		})
	}
	all.Go(func() { // over HTTP/2
		slow, end := io.Pipe()
		defer end.Close()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+s.Address+"/api/v1/namespaces/default/configmaps", slow)
		if err != nil {
			t.Error(err)
			return
		}
		req.Header, req.ContentLength = bearer("bad"), 100
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.PKI.Pool()}, ForceAttemptHTTP2: true}}
		resp, err := c.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusRequestTimeout || resp.ProtoMajor != 2 {
			t.Errorf("%s %s", resp.Proto, resp.Status)
		}
	})
	if _, err := s.Bearer("good").CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("another client meanwhile: %v", err)
	}
	all.Wait()
}

func TestAConnectionLivesLongerThanItsBodysPace(t *testing.T) {
	s := start(t)
	conn, err := tls.Dial("tcp", s.Address, &tls.Config{RootCAs: s.PKI.Pool(), NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	one := &http.Client{Transport: &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }, MaxConnsPerHost: 1}}
	post := func(name string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+s.Address+"/api/v1/namespaces/default/configmaps",
			strings.NewReader(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+name+`"}}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = bearer("good")
		req.Header.Set("Content-Type", "application/json")
		resp, err := one.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			t.Fatal(resp.Status)
		}
	}
	post("first")
	<-time.After(6 * time.Second) // longer than a body may keep silent
	post("second")
}

func TestWhatIsTooLongToLookAt(t *testing.T) {
	s := start(t)
	for name, c := range map[string]struct {
		path string
		want int
	}{
		"URL":                  {"/api/v1/pods?x=" + strings.Repeat("y", 70<<10), 414},
		"label selector":       {"/api/v1/pods?labelSelector=" + strings.Repeat("a=b,", 2000) + "a=b", 400},
		"field selector":       {"/api/v1/pods?fieldSelector=" + strings.Repeat("spec.nodeName=b,", 2000) + "spec.nodeName=b", 400},
		"a set of many values": {"/api/v1/pods?labelSelector=a+in+(" + strings.Repeat("b,", 2000) + "b)", 200},
		"a usual selector":     {"/api/v1/pods?labelSelector=a%3Db,c%21%3Dd&fieldSelector=spec.nodeName%3Dn", 200},
	} {
		if code, text := s.Ask(t, client(s), http.MethodGet, c.path, bearer("bad"), nil); code != c.want {
			t.Errorf("%s: %d %.200s, want %d", name, code, text, c.want)
		}
	}
}
