package fields

import (
	"fmt"
	"slices"

	core "k8s.io/kubernetes/pkg/apis/core"
)

// JudgeResize returns why a request to change the resources of a running pod is refused: one of its containers asks for
// a restart on that change, which would not happen.
func JudgeResize(pod, old *core.Pod) []Finding {
	i := slices.IndexFunc(rules, func(r Rule) bool { return r.Resize })
	var out []Finding
	for j := range pod.Spec.Containers {
		c := &pod.Spec.Containers[j]
		before := slices.IndexFunc(old.Spec.Containers, func(o core.Container) bool { return o.Name == c.Name })
		if before < 0 {
			continue
		}
		for k, p := range c.ResizePolicy {
			if p.RestartPolicy == core.RestartContainer && changes(c, &old.Spec.Containers[before], p.ResourceName) {
				out = append(out, Finding{rules[i].Name(), fmt.Sprintf("spec.containers[%d].resizePolicy[%d].restartPolicy", j, k), rules[i].Does, rules[i].Says})
			}
		}
	}
	return out
}

func changes(c, old *core.Container, name core.ResourceName) bool {
	for _, l := range [][2]core.ResourceList{{c.Resources.Requests, old.Resources.Requests}, {c.Resources.Limits, old.Resources.Limits}} {
		now, before := l[0][name], l[1][name]
		if now.Cmp(before) != 0 {
			return true
		}
	}
	return false
}
