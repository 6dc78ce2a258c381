package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/balsahq/balsa/cmd/balsa/hardening"
	noderuntime "github.com/balsahq/balsa/node/runtime"
)

const demoName = "hello"

// demo creates a Deployment of three replicas with a Service in front, and prints the
// Service's answer. The image is in this binary.
func (u *starter) demo(ctx context.Context) error {
	restConfig, err := clientcmd.BuildConfigFromFlags("", u.cfg.Kubeconfig())
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		return err
	}
	if _, err := client.AppsV1().Deployments("default").Create(ctx, demoDeployment(), metav1.CreateOptions{}); ignoreExists(err) != nil {
		return err
	}
	if _, err := client.CoreV1().Services("default").Create(ctx, demoService(), metav1.CreateOptions{}); ignoreExists(err) != nil {
		return err
	}
	if err := awaitDeployment(ctx, client); err != nil {
		return err
	}
	u.say("deployment/%s: 3 of 3 replicas are ready", demoName)
	service, err := client.CoreV1().Services("default").Get(ctx, demoName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	answer, err := fetch(ctx, "http://"+service.Spec.ClusterIP)
	if err != nil {
		return err
	}
	u.say("service/%s answers on http://%s: %s", demoName, service.Spec.ClusterIP, strings.Join(strings.Fields(answer), " "))
	return nil
}

func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func demoDeployment() *appsv1.Deployment {
	labels := map[string]string{"app": demoName}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: demoName, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](3),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": demoName, hardening.DemoLabel: "true"}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: demoName, Image: noderuntime.HelloImage,
					Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
					ReadinessProbe: &corev1.Probe{
						ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString("http")}},
						PeriodSeconds: 1,
					},
				}}},
			},
		},
	}
}

func demoService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: demoName, Labels: map[string]string{"app": demoName}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": demoName},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}},
		},
	}
}

// awaitDeployment blocks until all replicas are available.
func awaitDeployment(ctx context.Context, client kubernetes.Interface) error {
	selector := fields.OneTermEqualSelector("metadata.name", demoName).String()
	for {
		w, err := client.AppsV1().Deployments("default").Watch(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			return err
		}
		for event := range w.ResultChan() {
			d, ok := event.Object.(*appsv1.Deployment)
			if ok && d.Status.ObservedGeneration >= d.Generation && d.Status.AvailableReplicas >= *d.Spec.Replicas {
				w.Stop()
				return nil
			}
		}
		w.Stop()
		if ctx.Err() != nil {
			return errors.New("not all replicas became ready in time: `balsa kubectl describe pods` shows why")
		}
	}
}

// fetch returns the answer of url. It repeats the request until ctx ends, because the kernel gets the Service's rules a
// moment after the Service exists.
func fetch(ctx context.Context, url string) (string, error) {
	client := &http.Client{Timeout: 2 * time.Second}
	for {
		resp, err := client.Get(url)
		if err == nil {
			body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
			resp.Body.Close()
			if err == nil && resp.StatusCode == http.StatusOK {
				return string(body), nil
			}
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%s does not answer: %w", url, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
