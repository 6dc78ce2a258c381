package job

import (
	"fmt"
	"slices"

	batch "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
)

// verdict is the decision of the Job's failure policy on a failed pod.
type verdict struct {
	counts  bool // towards backoffLimit
	failJob string
	failIdx bool
}

// judge applies the first rule that matches; without one, or without a policy, the failure counts.
func judge(j *batch.Job, p *v1.Pod) verdict {
	if j.Spec.PodFailurePolicy == nil {
		return verdict{counts: true}
	}
	for i := range j.Spec.PodFailurePolicy.Rules {
		r := &j.Spec.PodFailurePolicy.Rules[i]
		why, ok := matches(r, p, i)
		if !ok {
			continue
		}
		switch r.Action {
		case batch.PodFailurePolicyActionIgnore:
			return verdict{}
		case batch.PodFailurePolicyActionFailJob:
			return verdict{counts: true, failJob: why}
		case batch.PodFailurePolicyActionFailIndex:
			return verdict{counts: true, failIdx: true}
		}
		return verdict{counts: true}
	}
	return verdict{counts: true}
}

func matches(r *batch.PodFailurePolicyRule, p *v1.Pod, index int) (why string, ok bool) {
	if r.OnExitCodes != nil {
		for _, list := range [][]v1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
			for i := range list {
				t := list[i].State.Terminated
				if t == nil || t.ExitCode == 0 || r.OnExitCodes.ContainerName != nil && *r.OnExitCodes.ContainerName != list[i].Name {
					continue
				}
				in := slices.Contains(r.OnExitCodes.Values, t.ExitCode)
				if in == (r.OnExitCodes.Operator == batch.PodFailurePolicyOnExitCodesOpIn) {
					return fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d matching %s rule at index %d", list[i].Name, p.Namespace, p.Name, t.ExitCode, r.Action, index), true
				}
			}
		}
		return "", false
	}
	for _, want := range r.OnPodConditions {
		for _, c := range p.Status.Conditions {
			if c.Type == want.Type && c.Status == want.Status {
				return fmt.Sprintf("Pod %s/%s has condition %s matching %s rule at index %d", p.Namespace, p.Name, c.Type, r.Action, index), true
			}
		}
	}
	return "", false
}

// enough reports whether a rule of the success policy is met.
func enough(j *batch.Job, done indexes) (message string, ok bool) {
	if j.Spec.SuccessPolicy == nil || j.Spec.Completions == nil {
		return "", false
	}
	for i, r := range j.Spec.SuccessPolicy.Rules {
		count := len(done)
		need := 0
		if r.SucceededIndexes != nil {
			of := parseIndexes(*r.SucceededIndexes, int(*j.Spec.Completions))
			need, count = len(of), 0
			for idx := range of {
				if done[idx] {
					count++
				}
			}
		}
		if r.SucceededCount != nil {
			need = int(*r.SucceededCount)
		}
		if need > 0 && count >= need {
			return fmt.Sprintf("Matched rules at index %d", i), true
		}
	}
	return "", false
}
