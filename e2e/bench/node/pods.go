package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/balsahq/balsa/e2e/figures"
)

const (
	podsSerial   = 20
	podsTurn     = 5 // pods in one turn of a system
	podsTogether = 50
)

// measurePods measures the time from the request that creates a pod to the event that says it runs.
func measurePods(ctx context.Context, b *bench) error {
	if err := b.upAll(ctx); err != nil {
		return err
	}
	clients := map[system]kubernetes.Interface{}
	for _, s := range b.systems {
		cfg, err := s.restConfig()
		if err != nil {
			return err
		}
		if clients[s], err = kubernetes.NewForConfig(cfg); err != nil {
			return err
		}
		if err := removePods(ctx, clients[s], "default"); err != nil {
			return err
		}
	}
	serially := map[system][]float64{}
	for range podsSerial / podsTurn {
		for _, s := range b.systems {
			b.progress("pods, one after the other%s", suffix(s))
			latencies, _, err := runPods(ctx, clients[s], s, podsTurn, true)
			if err != nil {
				return err
			}
			serially[s] = append(serially[s], latencies...)
		}
	}
	for _, s := range b.systems {
		name := fmt.Sprintf("pod create to Running, %d serial", podsSerial)
		b.table.Add(s.side(), figures.Of(name, "ms", "100"), serially[s]...)
		b.table.Add(s.side(), figures.Of(name+": p99", "ms", ""), figures.Quantile(serially[s], 0.99))
	}
	for range b.rounds {
		for _, s := range b.systems {
			b.progress("pods, %d at once%s", podsTogether, suffix(s))
			latencies, passed, err := runPods(ctx, clients[s], s, podsTogether, false)
			if err != nil {
				return err
			}
			b.table.Add(s.side(), figures.Of(fmt.Sprintf("pods, %d at once: all run", podsTogether), "s", "3"), passed.Seconds())
			b.table.Add(s.side(), figures.Of(fmt.Sprintf("pods, %d at once: p50", podsTogether), "s", ""), figures.Quantile(latencies, 0.5)/1e3)
		}
	}
	return nil
}

// runPods runs n pods, one after the other or all at once, and deletes them when all run. Latencies are in
// milliseconds.
func runPods(ctx context.Context, client kubernetes.Interface, s system, n int, oneByOne bool) ([]float64, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	pods := client.CoreV1().Pods("default")
	current, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, 0, err
	}
	w, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: current.ResourceVersion})
	if err != nil {
		return nil, 0, err
	}
	defer w.Stop()
	made, began := map[string]time.Time{}, time.Now()
	var latencies []float64
	create := func() error {
		pod := newPod(s)
		made[pod.Name] = time.Now()
		_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		return err
	}
	await := func(count int) error {
		for len(latencies) < count {
			event, open := <-w.ResultChan()
			if !open {
				return fmt.Errorf("the watch ended after %d of %d pods", len(latencies), n)
			}
			pod, ok := event.Object.(*corev1.Pod)
			if !ok || event.Type == watch.Deleted || pod.Status.Phase != corev1.PodRunning {
				continue
			}
			if since, waits := made[pod.Name]; waits {
				latencies = append(latencies, float64(time.Since(since).Microseconds())/1e3)
				delete(made, pod.Name)
			}
		}
		return nil
	}
	for i := range n {
		if err := create(); err != nil {
			return nil, 0, err
		}
		if oneByOne {
			if err := await(i + 1); err != nil {
				return nil, 0, err
			}
		}
	}
	if err := await(n); err != nil {
		return nil, 0, err
	}
	passed := time.Since(began)
	return latencies, passed, removePods(ctx, client, "default")
}

func newPod(s system) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "bench-" + strconv.FormatInt(serial.Add(1), 10)},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Containers:                    []corev1.Container{{Name: "main", Image: s.podImage()}},
		},
	}
}

// startPod creates one pod and waits until it runs.
func startPod(ctx context.Context, client kubernetes.Interface, s system) error {
	pods := client.CoreV1().Pods("default")
	pod := newPod(s)
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	return awaitEvent(ctx, pod.Name, pods.Watch, func(event watch.Event) bool {
		p, ok := event.Object.(*corev1.Pod)
		return ok && p.Status.Phase == corev1.PodRunning
	})
}

// removePods deletes the pods of a namespace and waits until they are gone.
func removePods(ctx context.Context, client kubernetes.Interface, namespace string) error {
	pods := client.CoreV1().Pods(namespace)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	var left *corev1.PodList
	var err error
	waited := every(ctx, 2*time.Minute, func() bool {
		if left, err = pods.List(ctx, metav1.ListOptions{}); err != nil {
			return !apierrors.IsServerTimeout(err)
		}
		if len(left.Items) > 0 {
			pause(ctx, 50*time.Millisecond)
		}
		return len(left.Items) == 0
	})
	if err != nil {
		return err
	}
	if waited != nil {
		return fmt.Errorf("%d deleted pods are still there: %w", len(left.Items), waited)
	}
	return nil
}
