package kinds

import (
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/policy"
	"k8s.io/kubernetes/pkg/registry/apps/controllerrevision"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/replicaset"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/autoscaling/horizontalpodautoscaler"
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
)

func appsRows() []Row {
	return []Row{{
		Group: apps.GroupName, Resource: "deployments", Singular: "deployment", Short: []string{"deploy"}, Category: "all",
		Types: typesOf[apps.Deployment, apps.DeploymentList](), Strategy: deployment.Strategy, Views: status(deployment.StatusStrategy),
	}, {
		Group: apps.GroupName, Resource: "replicasets", Singular: "replicaset", Short: []string{"rs"}, Category: "all",
		Types: typesOf[apps.ReplicaSet, apps.ReplicaSetList](), Strategy: replicaset.Strategy, Views: status(replicaset.StatusStrategy),
		Attrs: replicaset.GetAttrs,
	}, {
		Group: apps.GroupName, Resource: "statefulsets", Singular: "statefulset", Short: []string{"sts"}, Category: "all",
		Types: typesOf[apps.StatefulSet, apps.StatefulSetList](), Strategy: statefulset.Strategy, Views: status(statefulset.StatusStrategy),
	}, {
		Group: apps.GroupName, Resource: "daemonsets", Singular: "daemonset", Short: []string{"ds"}, Category: "all",
		Types: typesOf[apps.DaemonSet, apps.DaemonSetList](), Strategy: daemonset.Strategy, Views: status(daemonset.StatusStrategy),
	}, {
		Group: apps.GroupName, Resource: "controllerrevisions", Singular: "controllerrevision",
		Types: typesOf[apps.ControllerRevision, apps.ControllerRevisionList](), Strategy: controllerrevision.Strategy,
	}}
}

func batchRows() []Row {
	return []Row{{
		Group: batch.GroupName, Resource: "jobs", Singular: "job", Category: "all",
		Types: typesOf[batch.Job, batch.JobList](), Strategy: job.Strategy, Views: status(job.StatusStrategy),
		Attrs: job.GetAttrs, Wrap: wrapJobs,
	}, {
		Group: batch.GroupName, Resource: "cronjobs", Singular: "cronjob", Short: []string{"cj"}, Category: "all",
		Types: typesOf[batch.CronJob, batch.CronJobList](), Strategy: cronjob.Strategy, Views: status(cronjob.StatusStrategy),
	}, {
		Group: autoscaling.GroupName, Versions: []string{"v2", "v1"}, Resource: "horizontalpodautoscalers",
		Singular: "horizontalpodautoscaler", Short: []string{"hpa"}, Category: "all",
		Types:    typesOf[autoscaling.HorizontalPodAutoscaler, autoscaling.HorizontalPodAutoscalerList](),
		Strategy: horizontalpodautoscaler.Strategy, Views: status(horizontalpodautoscaler.StatusStrategy),
	}}
}

func policyRows() []Row {
	return []Row{{
		Group: policy.GroupName, Resource: "poddisruptionbudgets", Singular: "poddisruptionbudget", Short: []string{"pdb"},
		Types:    typesOf[policy.PodDisruptionBudget, policy.PodDisruptionBudgetList](),
		Strategy: poddisruptionbudget.Strategy, Views: status(poddisruptionbudget.StatusStrategy),
	}}
}
