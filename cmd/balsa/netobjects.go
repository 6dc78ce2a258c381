package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	noderuntime "github.com/balsahq/balsa/node/runtime"
	"github.com/balsahq/balsa/overlay/check"
)

const (
	// checkLabel is the label of the namespaces that network checks create. A namespace older than checkLife is one that a
	// killed check has left behind.
	checkLabel = "balsa.dev/net-check"
	checkLife  = 15 * time.Minute
	// mostServices and mostPods bound the objects that one check creates.
	mostServices, mostPods = 200, 32
	// podTime bounds the time until the pods of a check run.
	podTime = 30 * time.Second
	helloAt = 8080
)

// netObjects are the objects that a network check creates. All are in one namespace.
type netObjects struct {
	client    kubernetes.Interface
	namespace string
}

// createNamespace creates the namespace, once, and removes the namespaces that killed checks have left.
func (o *netObjects) createNamespace(ctx context.Context) error {
	if o.namespace != "" {
		return nil
	}
	spaces := o.client.CoreV1().Namespaces()
	if old, err := spaces.List(ctx, metav1.ListOptions{LabelSelector: checkLabel}); err == nil {
		for _, ns := range old.Items {
			if time.Since(ns.CreationTimestamp.Time) > checkLife && ns.DeletionTimestamp == nil {
				_ = spaces.Delete(ctx, ns.Name, metav1.DeleteOptions{})
			}
		}
	}
	ns, err := spaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "balsa-net-check-", Labels: map[string]string{checkLabel: ""},
	}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	o.namespace = ns.Name
	return nil
}

// remove deletes the namespace, also when ctx has ended.
func (o *netObjects) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), apiCallTime)
	defer cancel()
	if o.namespace != "" && o.client.CoreV1().Namespaces().Delete(ctx, o.namespace, metav1.DeleteOptions{}) == nil {
		o.namespace = ""
	}
}

// publish creates a Service for each probe, with a cluster address and a port on every node.
func (o *netObjects) publish(ctx context.Context, _ string, probes map[string]netip.Addr) (map[string]check.Published, func(), error) {
	if err := o.createNamespace(ctx); err != nil {
		return nil, nil, err
	}
	remove, out := func() { o.remove(ctx) }, make(map[string]check.Published)
	var errs []error
	for i, name := range sortedKeys(probes) {
		if i == mostServices {
			break
		}
		at, err := o.service(ctx, fmt.Sprintf("probe-%d", i), name, probes[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("cannot create the Service of %s: %w", name, err))
			continue
		}
		out[name] = at
	}
	return out, remove, errors.Join(errs...)
}

func sortedKeys[V any](m map[string]V) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func (o *netObjects) service(ctx context.Context, name, node string, probe netip.Addr) (check.Published, error) {
	tcp, family := corev1.ProtocolTCP, discoveryv1.AddressTypeIPv4
	if probe.Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	svc, err := o.client.CoreV1().Services(o.namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, IPFamilies: []corev1.IPFamily{corev1.IPFamily(family)},
			Ports: []corev1.ServicePort{{Name: "echo", Port: 80, TargetPort: intstr.FromInt32(check.EchoPort), Protocol: tcp}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return check.Published{}, err
	}
	_, err = o.client.DiscoveryV1().EndpointSlices(o.namespace).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "net-check.balsa.dev",
		}},
		AddressType: family,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{probe.String()}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("echo"), Port: ptr.To[int32](check.EchoPort), Protocol: &tcp}},
	}, metav1.CreateOptions{})
	if err != nil {
		return check.Published{}, err
	}
	ip, err := netip.ParseAddr(svc.Spec.ClusterIP)
	return check.Published{Cluster: netip.AddrPortFrom(ip, 80), NodePort: uint16(svc.Spec.Ports[0].NodePort)}, err
}

// policy creates a pod on each node, of the image that is in the binary.
func (o *netObjects) policy(ctx context.Context, _ string, nodes []string) (*check.Closed, error) {
	if err := o.createNamespace(ctx); err != nil {
		return nil, err
	}
	closed := &check.Closed{Pods: make(map[string]netip.AddrPort), Deny: o.deny, Remove: func() { o.remove(ctx) }}
	pods := o.client.CoreV1().Pods(o.namespace)
	for i, node := range nodes[:min(len(nodes), mostPods)] {
		if _, err := pods.Create(ctx, checkPod(fmt.Sprintf("pod-%d", i), node), metav1.CreateOptions{}); err != nil {
			return closed, fmt.Errorf("cannot create a pod on %s: %w", node, err)
		}
	}
	return closed, o.await(ctx, closed.Pods, min(len(nodes), mostPods))
}

// await blocks until all pods run, and puts their addresses into at, by node.
func (o *netObjects) await(ctx context.Context, at map[string]netip.AddrPort, want int) error {
	ctx, cancel := context.WithTimeout(ctx, podTime)
	defer cancel()
	w, err := o.client.CoreV1().Pods(o.namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer w.Stop()
	last := make(map[string]string)
	for len(at) < want {
		select {
		case event := <-w.ResultChan():
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				return notRunning(last, "the API ended the watch")
			}
			last[pod.Spec.NodeName] = podState(pod)
			ip, err := netip.ParseAddr(pod.Status.PodIP)
			if err == nil && pod.Status.Phase == corev1.PodRunning && isPodReady(pod) {
				at[pod.Spec.NodeName] = netip.AddrPortFrom(ip, helloAt)
				delete(last, pod.Spec.NodeName)
			}
		case <-ctx.Done():
			return notRunning(last, fmt.Sprintf("after %v", podTime))
		}
	}
	return nil
}

func notRunning(last map[string]string, when string) error {
	var texts []string
	for _, node := range sortedKeys(last) {
		texts = append(texts, node+": "+last[node])
	}
	return fmt.Errorf("%s not all of its pods run (--policy=false leaves this out): %s", when, strings.Join(texts, "; "))
}

func isPodReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// podState returns the reason for which a pod waits or, without one, its phase.
func podState(pod *corev1.Pod) string {
	for _, s := range pod.Status.ContainerStatuses {
		if w := s.State.Waiting; w != nil && w.Reason != "" {
			return strings.TrimSpace(w.Reason + " " + w.Message)
		}
	}
	if pod.Status.Reason != "" {
		return pod.Status.Reason + " " + pod.Status.Message
	}
	return string(pod.Status.Phase)
}

func checkPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{checkLabel: ""}},
		Spec: corev1.PodSpec{
			NodeName: node, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			AutomountServiceAccountToken: ptr.To(false), TerminationGracePeriodSeconds: ptr.To[int64](0), EnableServiceLinks: ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65534), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "pod", Image: noderuntime.HelloImage, ImagePullPolicy: corev1.PullIfNotPresent,
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
				ReadinessProbe:  &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(helloAt)}}, PeriodSeconds: 1},
			}},
		},
	}
}

// deny creates a NetworkPolicy that denies all traffic to the pods.
func (o *netObjects) deny(ctx context.Context) error {
	_, err := o.client.NetworkingV1().NetworkPolicies(o.namespace).Create(ctx, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "deny"}, Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
	}, metav1.CreateOptions{})
	return err
}
