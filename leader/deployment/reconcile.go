package deployment

import (
	"fmt"
	"reflect"
	"sort"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
)

// view is all a decision looks at. Nothing in it is changed.
type view struct {
	deployment *apps.Deployment
	sets       []*apps.ReplicaSet // all it controls
	oldRunning bool               // pods of old sets have not ended yet; asked for Recreate only
	now        time.Time
}

// plan is the list of actions of one reconcile, in this order.
type plan struct {
	create   *apps.ReplicaSet
	update   []change
	remove   []*apps.ReplicaSet
	revision string // of the Deployment; empty leaves it
	status   apps.DeploymentStatus
	again    time.Duration
}

// change is one ReplicaSet's new form and the size it had.
type change struct {
	set  *apps.ReplicaSet
	from int32
}

// planner carries the working copies of one decision.
type planner struct {
	view
	d       *apps.Deployment
	current *apps.ReplicaSet
	old     []*apps.ReplicaSet
	origin  map[*apps.ReplicaSet]*apps.ReplicaSet
	out     plan
}

// decide compares a Deployment with its ReplicaSets.
func decide(in view) (plan, error) {
	p := &planner{view: in, d: in.deployment.DeepCopy(), origin: map[*apps.ReplicaSet]*apps.ReplicaSet{}}
	copies := make([]*apps.ReplicaSet, len(in.sets))
	for i, s := range in.sets {
		copies[i] = s.DeepCopy()
		p.origin[copies[i]] = s
	}
	p.current, p.old = split(p.d, copies)
	if p.d.DeletionTimestamp != nil {
		p.finish(false)
		return p.out, nil
	}
	notePause(p.d, &p.d.Status, in.now)
	p.adjustCurrent()

	var err error
	rollout := !p.d.Spec.Paused && !p.scaling()
	switch {
	case !rollout:
		p.resize()
		if p.d.Spec.Paused {
			p.clean()
		}
	case p.d.Spec.Strategy.Type == apps.RecreateDeploymentStrategyType:
		err = p.recreate()
	case p.d.Spec.Strategy.Type == apps.RollingUpdateDeploymentStrategyType:
		err = p.roll()
	default:
		err = fmt.Errorf("deployment %s/%s: unknown strategy %q", p.d.Namespace, p.d.Name, p.d.Spec.Strategy.Type)
	}
	if err != nil {
		return plan{}, err
	}
	p.finish(rollout)
	return p.out, nil
}

// adjustCurrent keeps the current set's annotations and minReadySeconds in line.
func (p *planner) adjustCurrent() {
	if p.current == nil {
		return
	}
	annotate(p.d, p.current, nextRevision(p.old))
	p.current.Spec.MinReadySeconds = p.d.Spec.MinReadySeconds
	p.out.revision = p.current.Annotations[annRevision]
	if hasDeadline(p.d) && condition(&p.d.Status, apps.DeploymentProgressing) == nil {
		setCondition(&p.d.Status, progressing(v1.ConditionTrue, reasonFound, fmt.Sprintf("Found new replica set %q", p.current.Name), p.now))
	}
}

func (p *planner) all() []*apps.ReplicaSet {
	if p.current == nil {
		return p.old
	}
	return append(append([]*apps.ReplicaSet(nil), p.old...), p.current)
}

// scaling reports whether the Deployment's size changed since its active sets were last scaled.
func (p *planner) scaling() bool {
	for _, s := range active(p.all()) {
		if desired, ok := intAnnotation(s, annDesired); ok && desired != wanted(p.d) {
			return true
		}
	}
	return false
}

func (p *planner) scale(s *apps.ReplicaSet, to int32) bool {
	if size(s) == to {
		return false
	}
	s.Spec.Replicas = &to
	annotateSize(p.d, s)
	return true
}

// resize carries a change of size without moving the rollout on.
func (p *planner) resize() {
	if s := p.onlyOne(); s != nil {
		p.scale(s, wanted(p.d))
		if size(s) == wanted(p.d) {
			annotateSize(p.d, s)
		}
		return
	}
	switch {
	case p.current == nil && len(p.old) == 0:
	case saturated(p.d, p.current):
		for _, s := range active(p.old) {
			p.scale(s, 0)
		}
	case p.d.Spec.Strategy.Type == apps.RollingUpdateDeploymentStrategyType:
		for s, to := range proportional(p.d, p.all()) {
			p.scale(s, to)
			annotateSize(p.d, s)
		}
	}
}

// onlyOne is the one active set, or the newest when none is; nil when several are active.
func (p *planner) onlyOne() *apps.ReplicaSet {
	busy := active(p.all())
	switch {
	case len(busy) == 1:
		return busy[0]
	case len(busy) > 1:
		return nil
	case p.current != nil:
		return p.current
	case len(p.old) > 0:
		return p.old[len(p.old)-1]
	}
	return nil
}

func (p *planner) roll() error {
	if p.current == nil {
		if err := p.start(); err != nil {
			return err
		}
	} else if p.scale(p.current, min(growth(p.d, p.all(), p.current), wanted(p.d))) {
		return nil
	}
	shrunk := false
	for s, to := range shrink(p.d, active(p.old), p.current) {
		shrunk = p.scale(s, to) || shrunk
	}
	if !shrunk && complete(p.d, &p.d.Status) {
		p.clean()
	}
	return nil
}

func (p *planner) recreate() error {
	shrunk := false
	for _, s := range active(p.old) {
		shrunk = p.scale(s, 0) || shrunk
	}
	if shrunk || p.oldRunning {
		return nil
	}
	if p.current == nil {
		return p.start()
	}
	p.scale(p.current, wanted(p.d))
	if complete(p.d, &p.d.Status) {
		p.clean()
	}
	return nil
}

// start makes the set of the present template.
func (p *planner) start() error {
	s, err := newSet(p.d)
	if err != nil {
		return err
	}
	n := growth(p.d, append(append([]*apps.ReplicaSet(nil), p.old...), s), s)
	s.Spec.Replicas = &n
	annotate(p.d, s, nextRevision(p.old))
	annotateSize(p.d, s)
	p.current, p.out.create, p.out.revision = s, s, s.Annotations[annRevision]
	if hasDeadline(p.d) {
		setCondition(&p.d.Status, progressing(v1.ConditionTrue, reasonCreated, fmt.Sprintf("Created new replica set %q", s.Name), p.now))
	}
	return nil
}

// clean drops the oldest revisions above the history limit; only sets that are empty and settled.
func (p *planner) clean() {
	if p.d.Spec.RevisionHistoryLimit == nil {
		return
	}
	var kept []*apps.ReplicaSet
	for _, s := range p.old {
		if s.DeletionTimestamp == nil {
			kept = append(kept, s)
		}
	}
	surplus := len(kept) - int(*p.d.Spec.RevisionHistoryLimit)
	sort.SliceStable(kept, func(i, j int) bool { return revisionOf(kept[i]) < revisionOf(kept[j]) })
	for i := range max(surplus, 0) {
		s := kept[i]
		if s.Status.Replicas == 0 && size(s) == 0 && s.Generation <= s.Status.ObservedGeneration {
			p.out.remove = append(p.out.remove, s)
		}
	}
}

// finish collects what changed and computes the status.
func (p *planner) finish(rollout bool) {
	for _, s := range p.all() {
		if was := p.origin[s]; was != nil && !reflect.DeepEqual(was, s) {
			p.out.update = append(p.out.update, change{set: s, from: size(was)})
		}
	}
	p.out.status = counts(p.d, p.d.Status, p.current, p.all(), p.now)
	if rollout {
		judgeProgress(p.d, &p.out.status, &p.d.Status, p.current, p.all(), p.now)
	}
	p.out.again = checkAgain(p.d, &p.out.status, p.now)
}
