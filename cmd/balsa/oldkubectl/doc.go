// Package oldkubectl lets the kubectl inside Balsa accept the flags and forms that older versions of kubectl had and today's
// refuses. Each prints a warning that names today's form.
//
//	kubectl run NAME --image=I --replicas=3   creates a Deployment, as until v1.17; also --generator and --schedule
//	kubectl run … --requests, --limits, --serviceaccount, --hostport, --restart-policy
//	kubectl exec POD COMMAND                  runs the command although -- is missing
//	kubectl … -record                         is --record
//
// The objects are of today's versions, whatever version the generator names: a Deployment is of apps/v1, a CronJob of
// batch/v1. A `kubectl run` with none of --replicas, --generator and --schedule creates a Pod, as today's does.
//
// Workload is a function of values; Accept connects it with kubectl's commands.
package oldkubectl
