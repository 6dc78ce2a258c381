package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/balsahq/balsa/e2e/figures"
	"github.com/balsahq/balsa/e2e/quorum"
)

// hollow is the name of a Node without a machine, to which pods are bound.
const hollow = "hollow"

// measureControllers kills leaders and measures how soon a Deployment that is created right afterwards has a bound pod:
// for that, two controllers and the scheduler have to work.
func measureControllers(ctx context.Context, b *bench) error {
	for _, s := range b.systems {
		if s.side != figures.Ours {
			continue // etcd alone has no controllers; upstream's wait for their leases, 18 s
		}
		for run := range b.runs {
			b.progress("controllers %d", run+1)
			if err := b.controllersAfterKill(ctx, s, run); err != nil {
				return err
			}
		}
	}
	return nil
}

// api returns a client of server i's REST API.
func (s *system) api(i int) (*kubernetes.Clientset, error) {
	files, err := s.Credentials()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(&rest.Config{
		Host: "https://" + s.Host(i), QPS: -1, Dial: s.Net.Client.Dial, Timeout: 5 * time.Second,
		TLSClientConfig: rest.TLSClientConfig{CAFile: files.CA, CertFile: files.Cert, KeyFile: files.Key},
	})
}

func (b *bench) controllersAfterKill(ctx context.Context, s *system, run int) error {
	leader, clients, err := b.settled(ctx, s)
	if err != nil {
		return err
	}
	closeAll(clients)
	api, err := s.api((leader + 1) % s.Size())
	if err != nil {
		return err
	}
	if err := freshNode(ctx, api); err != nil {
		return fmt.Errorf("make a node: %w", err)
	}
	name := fmt.Sprintf("after-kill-%d", run)
	if err := boundAfter(ctx, api, name+"-before"); err != nil { // checks that everything works, and opens the connection
		return err
	}
	killed := time.Now()
	if err := s.Process(leader).Kill9(); err != nil {
		return err
	}
	err = boundAfter(ctx, api, name)
	took := time.Since(killed)
	if err := s.Start(ctx, leader); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	b.add(s, "leader killed: a new Deployment's pod is bound (upstream measured apart: 18.2)", "s", "1", took.Seconds())
	for _, d := range []string{name, name + "-before"} {
		if err := api.AppsV1().Deployments("default").Delete(ctx, d, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// boundAfter creates a Deployment and waits until its pod has a node.
func boundAfter(ctx context.Context, api *kubernetes.Clientset, name string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	labels := map[string]string{"app": name}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{NodeName: "", Containers: []corev1.Container{{Name: "a", Image: "none"}}},
			},
		},
	}
	var last error
	for made := false; ctx.Err() == nil; quorum.Pause(ctx, 5*time.Millisecond) {
		if !made {
			_, last = api.AppsV1().Deployments("default").Create(ctx, deployment, metav1.CreateOptions{})
			made = last == nil || apierrors.IsAlreadyExists(last)
			continue
		}
		pods, err := api.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		last = err
		if err == nil && len(pods.Items) > 0 && pods.Items[0].Spec.NodeName != "" {
			return nil
		}
	}
	return fmt.Errorf("the pod of deployment %s is not bound after a minute: %v", name, last)
}

// freshNode makes the hollow Node ready now. Controllers write to the Node too.
func freshNode(ctx context.Context, api *kubernetes.Clientset) error {
	return retry.OnError(retry.DefaultBackoff, func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }, func() error {
		return errors.Join(makeNode(ctx, api.CoreV1().Nodes()), renewLease(ctx, api.CoordinationV1().Leases("kube-node-lease")))
	})
}

func makeNode(ctx context.Context, nodes corev1client.NodeInterface) error {
	node, err := nodes.Get(ctx, hollow, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		node, err = nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: hollow}}, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	if len(node.Spec.Taints) > 0 {
		node.Spec.Taints = nil
		if node, err = nodes.Update(ctx, node, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	now := metav1.Now()
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: now, LastTransitionTime: now}}
	node.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("100"), "memory": resource.MustParse("100Gi"), "pods": resource.MustParse("1000")}
	node.Status.Capacity = node.Status.Allocatable
	_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

func renewLease(ctx context.Context, leases coordinationv1client.LeaseInterface) error {
	renewed, holder, seconds := metav1.NowMicro(), hollow, int32(40)
	lease, err := leases.Get(ctx, hollow, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: hollow},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
		}, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	lease.Spec.RenewTime = &renewed
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	return err
}
