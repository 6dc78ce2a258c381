package job

import (
	"sort"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/leader/pods"
)

// manage chooses the pods to delete and to create.
func (r *round) manage() {
	active := int32(len(r.active))
	want := r.wanted(active)
	surplus := r.surplus(int(max(0, active-want)))
	if len(surplus) > 0 {
		r.out.remove = surplus[:min(len(surplus), burst)]
		return
	}
	if onlyFailed(r.job) {
		for _, p := range r.pods {
			if p.DeletionTimestamp != nil && !pods.Terminal(p) {
				want--
			}
		}
	}
	missing := int(min(want-active, burst))
	if missing <= 0 {
		return
	}
	if !perIndex(r.job) {
		if wait := r.out.streak.wait(r.now); wait > 0 {
			r.later(wait)
			return
		}
	}
	if !indexed(r.job) {
		for range missing {
			r.out.create = append(r.out.create, -1)
		}
		return
	}
	r.out.create = r.nextIndexes(missing)
	r.out.counts = r.failures
}

func (r *round) wanted(active int32) int32 {
	parallelism := int32(1)
	if r.job.Spec.Parallelism != nil {
		parallelism = *r.job.Spec.Parallelism
	}
	switch {
	case suspended(r.job):
		return 0
	case r.job.Spec.Completions == nil && r.succeeded > 0:
		return min(active, parallelism) // one success is enough; the rest may finish
	case r.job.Spec.Completions == nil:
		return parallelism
	}
	left := *r.job.Spec.Completions - r.succeeded
	if perIndex(r.job) {
		left -= int32(len(r.failed))
	}
	return max(0, min(left, parallelism))
}

// surplus picks the active pods to delete: in an indexed Job every one without a rightful index and every second one of an
// index first, then, up to n in all, those that lose least.
func (r *round) surplus(n int) []*v1.Pod {
	var out, rest []*v1.Pod
	if indexed(r.job) {
		seen := map[int]bool{}
		sorted := append([]*v1.Pod(nil), r.active...)
		sort.SliceStable(sorted, func(i, j int) bool { return sorted[i].CreationTimestamp.Before(&sorted[j].CreationTimestamp) })
		for _, p := range sorted {
			i := indexOf(p)
			if i < 0 || i >= int(completions(r.job)) || seen[i] || r.done[i] || r.failed[i] {
				out = append(out, p)
				continue
			}
			seen[i] = true
			rest = append(rest, p)
		}
	} else {
		rest = r.active
	}
	return append(out, pods.Victims(rest, r.active, n-len(out), r.now)...)
}

// wait is how long the next pod has to wait after failures in a row.
func (s streak) wait(now time.Time) time.Duration {
	if s.failures == 0 {
		return 0
	}
	d := firstBackoff
	for range s.failures - 1 {
		if d *= 2; d >= lastBackoff {
			d = lastBackoff
			break
		}
	}
	return max(0, s.last.Add(d).Sub(now))
}

// nextIndexes are the lowest n indexes that are neither done, failed, running, nor waiting after a failure.
func (r *round) nextIndexes(n int) []int {
	taken := map[int]bool{}
	for _, p := range r.pods {
		ending := p.DeletionTimestamp != nil && !pods.Terminal(p)
		if pods.Active(p) || onlyFailed(r.job) && ending {
			taken[indexOf(p)] = true
		}
	}
	var out []int
	for i := 0; i < int(completions(r.job)) && len(out) < n; i++ {
		if taken[i] || r.done[i] || r.failed[i] {
			continue
		}
		if perIndex(r.job) {
			if wait := (streak{failures: r.failures[i], last: r.lastFail[i]}).wait(r.now); wait > 0 {
				r.later(wait)
				continue
			}
		}
		out = append(out, i)
	}
	return out
}
