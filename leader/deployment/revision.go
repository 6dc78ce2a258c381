package deployment

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"sort"
	"strconv"
	"strings"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The annotations kubectl and people read.
const (
	annRevision        = "deployment.kubernetes.io/revision"
	annRevisionHistory = "deployment.kubernetes.io/revision-history"
	annDesired         = "deployment.kubernetes.io/desired-replicas"
	annMax             = "deployment.kubernetes.io/max-replicas"

	// historyChars bounds the list of revisions a ReplicaSet once had.
	historyChars = 2000
)

// ownAnnotations are not copied from the Deployment to its ReplicaSet.
var ownAnnotations = map[string]bool{
	v1.LastAppliedConfigAnnotation: true,
	annRevision:                    true,
	annRevisionHistory:             true,
	annDesired:                     true,
	annMax:                         true,
	apps.DeprecatedRollbackTo:      true,
}

// split tells the ReplicaSet with the Deployment's present template, the oldest if there are several, from all others.
// Both are in the order of creation.
func split(d *apps.Deployment, sets []*apps.ReplicaSet) (current *apps.ReplicaSet, old []*apps.ReplicaSet) {
	sorted := append([]*apps.ReplicaSet(nil), sets...)
	sort.SliceStable(sorted, func(i, j int) bool { return older(sorted[i], sorted[j]) })
	for _, s := range sorted {
		if current == nil && sameTemplate(&s.Spec.Template, &d.Spec.Template) {
			current = s
			continue
		}
		old = append(old, s)
	}
	return current, old
}

func older(a, b *apps.ReplicaSet) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name < b.Name
	}
	return a.CreationTimestamp.Before(&b.CreationTimestamp)
}

// sameTemplate compares two templates, the label this controller adds aside.
func sameTemplate(a, b *v1.PodTemplateSpec) bool {
	a, b = a.DeepCopy(), b.DeepCopy()
	delete(a.Labels, apps.DefaultDeploymentUniqueLabelKey)
	delete(b.Labels, apps.DefaultDeploymentUniqueLabelKey)
	return equality.Semantic.DeepEqual(a, b)
}

// templateHash names a template. The collision count changes it when two templates share one.
func templateHash(t *v1.PodTemplateSpec, collisions *int32) (string, error) {
	encoded, err := json.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("hashing the pod template: %w", err)
	}
	h := fnv.New32a()
	h.Write(encoded)
	if collisions != nil {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(*collisions)))
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10)), nil
}

// newSet builds the ReplicaSet of the Deployment's present template with no replicas yet.
func newSet(d *apps.Deployment) (*apps.ReplicaSet, error) {
	hash, err := templateHash(&d.Spec.Template, d.Status.CollisionCount)
	if err != nil {
		return nil, err
	}
	template := *d.Spec.Template.DeepCopy()
	if template.Labels == nil {
		template.Labels = map[string]string{}
	}
	template.Labels[apps.DefaultDeploymentUniqueLabelKey] = hash
	selector := d.Spec.Selector.DeepCopy()
	if selector.MatchLabels == nil {
		selector.MatchLabels = map[string]string{}
	}
	selector.MatchLabels[apps.DefaultDeploymentUniqueLabelKey] = hash
	name := d.Name
	if most := validation.DNS1123SubdomainMaxLength - len(hash) - 1; len(name) > most {
		name = name[:most]
	}
	return &apps.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: name + "-" + hash, Namespace: d.Namespace,
			Labels:          maps.Clone(template.Labels),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, controllerKind)},
		},
		Spec: apps.ReplicaSetSpec{
			Replicas: new(int32), MinReadySeconds: d.Spec.MinReadySeconds, Selector: selector, Template: template,
		},
	}, nil
}

func revisionOf(s *apps.ReplicaSet) int64 {
	n, err := strconv.ParseInt(s.Annotations[annRevision], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// nextRevision is one more than the highest revision of the old sets.
func nextRevision(old []*apps.ReplicaSet) int64 {
	highest := int64(0)
	for _, s := range old {
		highest = max(highest, revisionOf(s))
	}
	return highest + 1
}

// annotate brings the current set's annotations up to date: the Deployment's own, and a revision above all old ones. A
// set that had a lower revision was rolled back to; the revision it had is kept in its history.
func annotate(d *apps.Deployment, s *apps.ReplicaSet, revision int64) {
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	for k, v := range d.Annotations {
		if !ownAnnotations[k] {
			s.Annotations[k] = v
		}
	}
	had := revisionOf(s)
	if had >= revision {
		return
	}
	if had > 0 {
		s.Annotations[annRevisionHistory] = appendHistory(s.Annotations[annRevisionHistory], strconv.FormatInt(had, 10))
	}
	s.Annotations[annRevision] = strconv.FormatInt(revision, 10)
}

func appendHistory(history, revision string) string {
	if history == "" {
		return revision
	}
	history += "," + revision
	for len(history) > historyChars {
		_, history, _ = strings.Cut(history, ",")
	}
	return history
}

// annotateSize records the Deployment's size when this set was last scaled. A later reconcile compares it to tell whether the
// Deployment was scaled.
func annotateSize(d *apps.Deployment, s *apps.ReplicaSet) {
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[annDesired] = strconv.FormatInt(int64(wanted(d)), 10)
	s.Annotations[annMax] = strconv.FormatInt(int64(wanted(d)+maxSurge(d)), 10)
}

// intAnnotation reads a count; ok is false when there is none or it makes no sense.
func intAnnotation(s *apps.ReplicaSet, key string) (n int32, ok bool) {
	v, err := strconv.ParseUint(s.Annotations[key], 10, 31)
	return int32(v), err == nil
}
