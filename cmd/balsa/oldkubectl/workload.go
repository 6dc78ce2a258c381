package oldkubectl

import (
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Request is what the old flags ask for.
type Request struct {
	Generator string // the value of --generator, or empty
	Schedule  string // the value of --schedule, or empty
	Replicas  int
}

// kind is what a generator makes.
type kind string

const (
	pod                   kind = "Pod"
	deployment            kind = "Deployment"
	job                   kind = "Job"
	cronJob               kind = "CronJob"
	replicationController kind = "ReplicationController"
)

// generators are the generators of `kubectl run`, and what they make today.
var generators = map[string]kind{
	"deployment/v1beta1":      deployment,
	"deployment/apps.v1beta1": deployment,
	"deployment/apps.v1":      deployment,
	"job/v1":                  job,
	"cronjob/v1beta1":         cronJob,
	"cronjob/v2alpha1":        cronJob,
	"run/v1":                  replicationController,
	"run-pod/v1":              pod,
}

var (
	errGenerator = errors.New("no such generator")
	errSchedule  = errors.New("a CronJob needs --schedule")
	errReplicas  = errors.New("--replicas needs an object with replicas: a Deployment or a ReplicationController")
	errRestart   = errors.New("this kind of object does not allow this restart policy")
)

// choose returns the kind that the request and the restart policy lead to. Without a generator it is the kind that
// kubectl v1.17 inferred.
func (r Request) choose(restart corev1.RestartPolicy) (kind, error) {
	if r.Generator != "" {
		k, ok := generators[r.Generator]
		if !ok {
			return "", fmt.Errorf("--generator=%s: %w", r.Generator, errGenerator)
		}
		return k, nil
	}
	switch {
	case r.Schedule != "":
		return cronJob, nil
	case restart == corev1.RestartPolicyOnFailure:
		return job, nil
	case restart == corev1.RestartPolicyNever:
		return pod, nil
	}
	return deployment, nil
}

// Workload returns the object that runs p as the request asks: p itself, or a workload with p as its template.
// restart is the policy that the user gave, or empty: it decides the kind, and for a job the default is OnFailure.
func Workload(r Request, p *corev1.Pod, restart corev1.RestartPolicy) (runtime.Object, error) {
	k, err := r.choose(restart)
	if err != nil {
		return nil, err
	}
	if err := r.check(k, restart); err != nil {
		return nil, err
	}
	p = p.DeepCopy()
	meta := metav1.ObjectMeta{Name: p.Name, Labels: p.Labels, Annotations: p.Annotations}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels}, Spec: p.Spec}
	replicas := int32(r.Replicas)
	switch k {
	case deployment:
		selector := &metav1.LabelSelector{MatchLabels: p.Labels}
		return &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector, Template: template}}, nil
	case replicationController:
		return &corev1.ReplicationController{ObjectMeta: meta, Spec: corev1.ReplicationControllerSpec{Replicas: &replicas, Selector: p.Labels, Template: &template}}, nil
	case job:
		template.Spec.RestartPolicy = restartOfJob(restart)
		return &batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Template: template}}, nil
	case cronJob:
		template.Spec.RestartPolicy = restartOfJob(restart)
		spec := batchv1.CronJobSpec{Schedule: r.Schedule, ConcurrencyPolicy: batchv1.AllowConcurrent,
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template}}}
		return &batchv1.CronJob{ObjectMeta: meta, Spec: spec}, nil
	}
	return p, nil
}

// check refuses what the kind would ignore.
func (r Request) check(k kind, restart corev1.RestartPolicy) error {
	switch {
	case k == cronJob && r.Schedule == "":
		return errSchedule
	case k != cronJob && r.Schedule != "":
		return fmt.Errorf("a %s has no schedule: %w", k, errGenerator)
	case k != deployment && k != replicationController && r.Replicas != 1:
		return fmt.Errorf("a %s has no replicas: %w", k, errReplicas)
	case (k == deployment || k == replicationController) && restart != "" && restart != corev1.RestartPolicyAlways,
		(k == job || k == cronJob) && restart == corev1.RestartPolicyAlways:
		return fmt.Errorf("a %s with --restart=%s: %w", k, restart, errRestart)
	}
	return nil
}

func restartOfJob(restart corev1.RestartPolicy) corev1.RestartPolicy {
	if restart == "" {
		return corev1.RestartPolicyOnFailure
	}
	return restart
}
