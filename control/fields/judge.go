package fields

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/coordination"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/apis/resource"
	"k8s.io/kubernetes/pkg/apis/storage"
)

// kinds are the kinds that rules name, with the internal types that admission gets.
var kinds = map[string]runtime.Object{
	"Pod": &core.Pod{}, "PodTemplate": &core.PodTemplate{}, "ReplicationController": &core.ReplicationController{},
	"Deployment": &apps.Deployment{}, "ReplicaSet": &apps.ReplicaSet{}, "DaemonSet": &apps.DaemonSet{},
	"StatefulSet": &apps.StatefulSet{}, "Job": &batch.Job{}, "CronJob": &batch.CronJob{},
	"Node": &core.Node{}, "PersistentVolume": &core.PersistentVolume{}, "PersistentVolumeClaim": &core.PersistentVolumeClaim{},
	"Lease":        &coordination.Lease{},
	"IngressClass": &networking.IngressClass{}, "CSIDriver": &storage.CSIDriver{}, "CSINode": &storage.CSINode{},
	"CSIStorageCapacity": &storage.CSIStorageCapacity{}, "VolumeAttachment": &storage.VolumeAttachment{},
	"VolumeAttributesClass": &storage.VolumeAttributesClass{}, "DeviceClass": &resource.DeviceClass{},
	"ResourceClaim": &resource.ResourceClaim{}, "ResourceClaimTemplate": &resource.ResourceClaimTemplate{},
	"ResourceSlice": &resource.ResourceSlice{},
}

// templates are the paths of pod templates, by kind.
var templates = map[string]string{
	"PodTemplate": "template.", "ReplicationController": "spec.template.", "Deployment": "spec.template.",
	"ReplicaSet": "spec.template.", "DaemonSet": "spec.template.", "StatefulSet": "spec.template.", "Job": "spec.template.",
	"CronJob": "spec.jobTemplate.spec.template.",
}

// Finding is a field without effect that an object sets.
type Finding struct {
	Rule  string // its name
	Field string
	Does  Verdict
	Says  string
}

// String returns the message for the user.
func (f Finding) String() string {
	if f.Field == "" {
		return f.Says
	}
	return f.Field + ": " + f.Says
}

// check is a rule compiled for one type.
type check struct {
	rule Rule
	path path
	does Verdict
}

// checks are compiled for the first object.
var checks = sync.OnceValues(func() (map[reflect.Type][]check, error) {
	out := map[reflect.Type][]check{}
	add := func(kind string, r Rule, prefix string, does Verdict) error {
		t := reflect.TypeOf(kinds[kind]).Elem()
		for _, text := range expand(r.Path) {
			var p path
			if text != "" {
				var err error
				if p, err = compile(t, prefix+text); err != nil {
					return fmt.Errorf("rule %s for %s: %w", r.Name(), kind, err)
				}
			}
			out[t] = append(out[t], check{r, p, does})
		}
		return nil
	}
	for _, r := range rules {
		if kinds[r.Kind] == nil {
			return nil, fmt.Errorf("rule %s names an unknown kind", r.Name())
		}
		if err := add(r.Kind, r, "", r.Does); err != nil {
			return nil, err
		}
		if r.Kind != "Pod" {
			continue
		}
		for kind, prefix := range templates {
			if err := add(kind, r, prefix, Said); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
})

// expand returns text with {a,b} written out.
func expand(text string) []string {
	before, rest, ok := strings.Cut(text, "{")
	if !ok {
		return []string{text}
	}
	inner, after, _ := strings.Cut(rest, "}")
	var out []string
	for _, one := range strings.Split(inner, ",") {
		out = append(out, expand(before+one+after)...)
	}
	return out
}

// Judge returns the fields without effect that obj sets and old does not; old may be nil. Both are of the internal
// version. Each rule gives at most one finding.
func Judge(obj, old runtime.Object) ([]Finding, error) {
	all, err := checks()
	if err != nil {
		return nil, err
	}
	var out []Finding
	for _, c := range all[reflect.TypeOf(obj).Elem()] {
		at, ok := c.first(obj)
		if !ok {
			continue
		}
		if old != nil && !reflect.ValueOf(old).IsNil() {
			if _, before := c.first(old); before {
				continue
			}
		}
		out = append(out, c.finding(at))
	}
	return out, nil
}

func (c check) finding(at string) Finding { return Finding{c.rule.Name(), at, c.does, c.rule.Says} }

// first returns the name of the first field for which the rule holds.
func (c check) first(obj runtime.Object) (at string, ok bool) {
	if len(c.path) == 0 {
		return "", true
	}
	c.path.walk(reflect.ValueOf(obj), reflect.Value{}, "", func(f found) bool {
		if c.rule.Is != "" && text(f.value) != c.rule.Is || c.rule.Where != nil && !c.rule.Where.holds(f.holder) || c.rule.excused(f.holder) {
			return true
		}
		at, ok = f.at, true
		return false
	})
	return at, ok
}

// excused reports whether a field is set beside which the rule does not hold.
func (r Rule) excused(holder reflect.Value) bool {
	return slices.ContainsFunc(strings.Split(r.Unless, ","), func(field string) bool {
		v := holder.FieldByNameFunc(func(n string) bool { return strings.EqualFold(n, field) })
		return v.IsValid() && !v.IsZero()
	})
}

func (b *Beside) holds(holder reflect.Value) bool {
	v := holder.FieldByNameFunc(func(n string) bool { return strings.EqualFold(n, b.Field) })
	return v.IsValid() && text(v) == b.Value
}

func text(v reflect.Value) string {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return ""
		}
		v = v.Elem()
	}
	return fmt.Sprint(v.Interface())
}
