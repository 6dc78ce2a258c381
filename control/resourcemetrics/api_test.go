package resourcemetrics_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/framer"
	restclient "k8s.io/client-go/rest"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/metrics/pkg/client/clientset/versioned"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/controltest"
	"github.com/balsahq/balsa/control/resourcemetrics"
)

func used(cpu, memory string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
}

func podUse(namespace, name, cpu string) metricsv1beta1.PodMetrics {
	return metricsv1beta1.PodMetrics{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Timestamp: metav1.NewTime(time.Unix(1000, 0)), Window: metav1.Duration{Duration: 15 * time.Second},
		Containers: []metricsv1beta1.ContainerMetrics{{Name: "a", Usage: used(cpu, "3Mi")}, {Name: "b", Usage: used("1m", "4Mi")}},
	}
}

// say writes a node's report.
func say(t *testing.T, w io.Writer, node metricsv1beta1.NodeMetrics, pods ...metricsv1beta1.PodMetrics) {
	t.Helper()
	frames := framer.NewLengthDelimitedFrameWriter(w)
	for _, o := range []interface{ Marshal() ([]byte, error) }{&node, &metricsv1beta1.PodMetricsList{Items: pods}} {
		data, err := o.Marshal()
		if err == nil {
			_, err = frames.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func nodeUse(cpu string) metricsv1beta1.NodeMetrics {
	return metricsv1beta1.NodeMetrics{Timestamp: metav1.NewTime(time.Unix(1000, 0)), Window: metav1.Duration{Duration: 15 * time.Second}, Usage: used(cpu, "1Gi")}
}

// connect is the connection of a node that reports until the test ends.
func connect(t *testing.T, reports *resourcemetrics.Reports, node string) net.Conn {
	here, there := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- reports.Receive(node, there) }()
	t.Cleanup(func() {
		_ = here.Close()
		<-done
	})
	return here
}

// cluster has two nodes, and a pod on each in two namespaces.
func cluster(t *testing.T) (*controltest.Server, *resourcemetrics.Reports) {
	t.Helper()
	reports := resourcemetrics.NewReports()
	s := controltest.Start(t, func(c *control.Config) { c.ResourceMetrics = reports })
	ctx, client := t.Context(), s.Admin()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"n1", "n2"} {
		_, err := client.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"disk": name}}}, metav1.CreateOptions{})
		must(err)
	}
	_, err := client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{})
	must(err)
	for _, namespace := range []string{"default", "other"} {
		_, err := client.CoreV1().ServiceAccounts(namespace).Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		must(err)
	}
	for name, node := range map[string]string{"web-1": "n1", "web-2": "n2"} {
		for _, namespace := range []string{"default", "other"} {
			_, err := client.CoreV1().Pods(namespace).Create(ctx, &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web", "on": node}},
				Spec:       v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "a", Image: "i"}, {Name: "b", Image: "i"}}},
			}, metav1.CreateOptions{})
			must(err)
		}
	}
	return s, reports
}

func metricsClient(t *testing.T, c *restclient.Config) *versioned.Clientset {
	t.Helper()
	client, err := versioned.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func names(list *metricsv1beta1.PodMetricsList) (out []string) {
	for _, p := range list.Items {
		out = append(out, p.Namespace+"/"+p.Name)
	}
	return out
}

func TestNodesAndPodsAreListedAsTheirNodesReport(t *testing.T) {
	s, reports := cluster(t)
	ctx := t.Context()
	one, two := connect(t, reports, "n1"), connect(t, reports, "n2")
	// n1 speaks of a pod on n2 and of one that does not exist, too.
	say(t, one, nodeUse("1500m"), podUse("default", "web-1", "250m"), podUse("default", "web-2", "64"), podUse("other", "web-1", "1m"), podUse("default", "ghost", "1"))
	say(t, two, nodeUse("1"), podUse("default", "web-2", "2"))

	for format, contentType := range map[string]string{"JSON": "application/json", "protobuf": "application/vnd.kubernetes.protobuf"} {
		t.Run(format, func(t *testing.T) {
			config := s.AdminConfig()
			config.ContentType = contentType
			api := metricsClient(t, config).MetricsV1beta1()
			controltest.Await(t, "both nodes are known", func() bool {
				list, err := api.NodeMetricses().List(ctx, metav1.ListOptions{})
				return err == nil && len(list.Items) == 2
			})
			node, err := api.NodeMetricses().Get(ctx, "n1", metav1.GetOptions{})
			if err != nil || node.Usage.Cpu().String() != "1500m" || node.Usage.Memory().String() != "1Gi" || node.Window.Duration != 15*time.Second ||
				node.Timestamp.Unix() != 1000 || node.Labels["disk"] != "n1" {
				t.Errorf("node: %v, %v", node, err)
			}
			pods, err := api.PodMetricses("").List(ctx, metav1.ListOptions{})
			if want := []string{"default/web-1", "default/web-2", "other/web-1"}; err != nil || !slices.Equal(names(pods), want) {
				t.Errorf("pods of all namespaces: %v, %v", names(pods), err)
			}
			pod, err := api.PodMetricses("default").Get(ctx, "web-2", metav1.GetOptions{})
			if err != nil || len(pod.Containers) != 2 || pod.Containers[0].Usage.Cpu().String() != "2" {
				t.Errorf("a pod, of which another node lies: %v, %v", pod, err)
			}
			for selector, want := range map[metav1.ListOptions][]string{
				{LabelSelector: "on=n2"}:                                       {"default/web-2"},
				{LabelSelector: "app=web"}:                                     {"default/web-1", "default/web-2"},
				{LabelSelector: "app=none"}:                                    nil,
				{FieldSelector: "metadata.name=web-1"}:                         {"default/web-1"},
				{LabelSelector: "on=n1", FieldSelector: "metadata.name=web-2"}: nil,
			} {
				list, err := api.PodMetricses("default").List(ctx, selector)
				if err != nil || !slices.Equal(names(list), want) {
					t.Errorf("%s%s: %v, %v", selector.LabelSelector, selector.FieldSelector, names(list), err)
				}
			}
			for _, name := range []string{"ghost", "none"} {
				if _, err := api.PodMetricses("default").Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "pods.metrics.k8s.io") {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	t.Run("table", func(t *testing.T) {
		certificate, err := s.PKI.Admin().GetClientCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		header := http.Header{"Accept": {"application/json;as=Table;v=v1;g=meta.k8s.io"}}
		for path, want := range map[string]string{"nodes/n1": `["n1","1500m","1Gi","15s"]`, "namespaces/default/pods": `["web-1","251m","7Mi","15s"]`} {
			if code, body := s.Ask(t, s.HTTP(certificate), "GET", "/apis/metrics.k8s.io/v1beta1/"+path, header, nil); code != 200 || !strings.Contains(body, want) {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
		for _, path := range []string{"nodes?watch=true", "namespaces/default/pods?watch=true", "watch/nodes"} {
			if code, body := s.Ask(t, s.HTTP(certificate), "GET", "/apis/metrics.k8s.io/v1beta1/"+path, nil, nil); code/100 != 4 {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
		if code, body := s.Ask(t, s.HTTP(certificate), "POST", "/apis/metrics.k8s.io/v1beta1/nodes", nil, strings.NewReader("{}")); code != 405 {
			t.Errorf("create: %d %s", code, body)
		}
	})
	t.Run("gone", func(t *testing.T) {
		if err := one.Close(); err != nil {
			t.Fatal(err)
		}
		api := metricsClient(t, s.AdminConfig()).MetricsV1beta1()
		controltest.Await(t, "the node whose connection has ended is unknown", func() bool {
			_, err := api.NodeMetricses().Get(ctx, "n1", metav1.GetOptions{})
			list, failed := api.PodMetricses("").List(ctx, metav1.ListOptions{})
			return apierrors.IsNotFound(err) && failed == nil && slices.Equal(names(list), []string{"default/web-2"})
		})
	})
}

func TestMetricsAreReadWithTheRightsOfTheRoleView(t *testing.T) {
	s, reports := cluster(t)
	ctx := t.Context()
	say(t, connect(t, reports, "n1"), nodeUse("1"), podUse("default", "web-1", "1"), podUse("other", "web-1", "1"))
	as := s.AdminConfig()
	as.Impersonate.UserName = "viewer"
	api := metricsClient(t, as).MetricsV1beta1()
	if _, err := api.PodMetricses("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("without rights: %v", err)
	}
	_, err := s.Admin().RbacV1().RoleBindings("default").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "viewer"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: "User", Name: "viewer"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	controltest.Await(t, "the pods of the namespace are shown", func() bool {
		list, err := api.PodMetricses("default").List(ctx, metav1.ListOptions{})
		return err == nil && slices.Equal(names(list), []string{"default/web-1"})
	})
	_, others := api.PodMetricses("other").List(ctx, metav1.ListOptions{})
	_, all := api.PodMetricses("").List(ctx, metav1.ListOptions{})
	_, nodes := api.NodeMetricses().List(ctx, metav1.ListOptions{})
	for what, err := range map[string]error{"another namespace": others, "all namespaces": all, "nodes": nodes} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestANodeThatSaysNothingForAMinuteIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := resourcemetrics.NewReports()
		here, there := net.Pipe()
		done := make(chan time.Time, 1)
		go func() {
			_ = reports.Receive("n1", there)
			done <- time.Now()
		}()
		for range 3 {
			say(t, here, nodeUse("1"))
			time.Sleep(50 * time.Second)
		}
		last := time.Now().Add(-50 * time.Second)
		if after := (<-done).Sub(last); after != time.Minute {
			t.Errorf("forgotten after %s", after)
		}
		if _, err := here.Write([]byte{0}); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the connection is still there: %v", err)
		}
	})
}

func TestAReportThatIsTooLargeOrNoneEndsTheConnection(t *testing.T) {
	huge := binary.BigEndian.AppendUint32(nil, 1<<30)
	for name, data := range map[string][]byte{
		"announces a gigabyte": append(huge, make([]byte, 2<<20)...),
		"is no report":         append(binary.BigEndian.AppendUint32(nil, 3), "\xff\xff\xff"...),
	} {
		t.Run(name, func(t *testing.T) {
			here, there := net.Pipe()
			done := make(chan error, 1)
			go func() { done <- resourcemetrics.NewReports().Receive("n1", there) }()
			_, _ = io.Copy(here, bytes.NewReader(data)) // it ends when the other end closes
			if err := <-done; err == nil || errors.Is(err, io.EOF) {
				t.Errorf("taken: %v", err)
			}
		})
	}
}
