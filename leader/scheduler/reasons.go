package scheduler

import (
	"fmt"
	"slices"
	"strings"
)

// reasons counts nodes by the reason for which they do not admit a pod.
type reasons map[string]int

func (r reasons) add(reason string, nodes int) {
	if nodes > 0 {
		r[reason] += nodes
	}
}

func (r reasons) addAll(list []string) {
	for _, reason := range list {
		r[reason]++
	}
}

// text returns the counts in upstream's form: "0/3 nodes are available: 1 Insufficient cpu, 2 Too many pods."
func (r reasons) text(nodes int) string {
	head := fmt.Sprintf("0/%d nodes are available:", nodes)
	if len(r) == 0 {
		return head
	}
	parts := make([]string, 0, len(r))
	for reason, count := range r {
		parts = append(parts, fmt.Sprintf("%d %s", count, reason))
	}
	slices.Sort(parts)
	return head + " " + strings.Join(parts, ", ") + "."
}

// explain returns the text of a refusal.
func (v verdict) explain(nodes int) string {
	if nodes == 0 {
		return "no nodes available to schedule pods"
	}
	if v.overall != nil {
		return fmt.Sprintf("0/%d nodes are available: %s.", nodes, strings.Join(v.overall.Reasons, ", "))
	}
	why, absent := make(reasons), 0
	for _, refusal := range v.refusals {
		if refusal == nil {
			absent++
			continue
		}
		why.addAll(refusal.Reasons)
	}
	if v.absent != "" {
		why.add(v.absent, absent)
	}
	return why.text(nodes)
}
