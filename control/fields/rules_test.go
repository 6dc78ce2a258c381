package fields

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	core "k8s.io/kubernetes/pkg/apis/core"
)

// set sets the field at the end of p, and everything above it, to a value for which the rule holds.
func set(t *testing.T, p path, v, holder reflect.Value, r Rule) {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	if len(p) == 0 {
		fill(t, v, r)
		if w := r.Where; w != nil {
			holder.FieldByNameFunc(func(n string) bool { return strings.EqualFold(n, w.Field) }).SetString(w.Value)
		}
		return
	}
	switch s := p[0]; {
	case s.each && v.Kind() == reflect.Map:
		set(t, append(path{{key: "any"}}, p[1:]...), v, holder, r)
	case s.each:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		set(t, p[1:], v.Index(0), holder, r)
	case s.key != "":
		e := reflect.New(v.Type().Elem()).Elem()
		set(t, p[1:], e, holder, r)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf(s.key).Convert(v.Type().Key()), e)
	default:
		for _, i := range s.field[:len(s.field)-1] {
			if v = v.Field(i); v.Kind() == reflect.Pointer {
				v.Set(reflect.New(v.Type().Elem()))
				v = v.Elem()
			}
		}
		set(t, p[1:], v.Field(s.field[len(s.field)-1]), v, r)
	}
}

func fill(t *testing.T, v reflect.Value, r Rule) {
	switch q, isQuantity := v.Addr().Interface().(*resource.Quantity); {
	case isQuantity:
		*q = resource.MustParse("1Gi")
	case v.Kind() == reflect.String:
		v.SetString("anything")
		if r.Is != "" {
			v.SetString(r.Is)
		}
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case v.Kind() == reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem())
	case v.Kind() == reflect.Struct, v.Kind() == reflect.Int32:
	default:
		t.Fatalf("rule %s: the test cannot set a %s", r.Name(), v.Type())
	}
}

// TestRules sets the field of each rule, in each kind that it applies to, and judges the object.
func TestRules(t *testing.T) {
	all, err := checks()
	if err != nil {
		t.Fatal(err)
	}
	judged := map[string]int{}
	for typ, list := range all {
		for _, c := range list {
			judged[c.rule.Name()]++
			t.Run(c.rule.Name(), func(t *testing.T) {
				obj, bare := reflect.New(typ), reflect.New(typ).Interface().(runtime.Object)
				if len(c.path) > 0 {
					set(t, c.path, obj, reflect.Value{}, c.rule)
				}
				o := obj.Interface().(runtime.Object)
				found, err := Judge(o, nil)
				if err != nil || len(found) != 1 || found[0].Rule != c.rule.Name() || found[0].Does != c.does {
					t.Fatalf("%s: found %v: %v", typ, found, err)
				}
				if len(c.path) > 0 {
					if at := found[0].Field; at == "" || strings.ContainsAny(at, "*{") {
						t.Errorf("%s: the field is called %q", typ, at)
					}
					if found, err := Judge(bare, nil); err != nil || len(found) != 0 {
						t.Errorf("an empty %s: %v, %v", typ, found, err)
					}
				}
				if found, err := Judge(o, o); err != nil || len(found) != 0 {
					t.Errorf("said again of an object that is unchanged: %v, %v", found, err)
				}
			})
		}
	}
	for _, r := range rules {
		if judged[r.Name()] == 0 || r.Says == "" || r.Does != Refused && r.Does != Said {
			t.Errorf("rule %s is about nothing, or says nothing", r.Name())
		}
	}
}

func TestConditionsOfRules(t *testing.T) {
	action := func(a core.ContainerRestartRuleAction) *core.Pod {
		return &core.Pod{Spec: core.PodSpec{Containers: []core.Container{{RestartPolicyRules: []core.ContainerRestartRule{{Action: a}}}}}}
	}
	for name, c := range map[string]struct {
		pod  *core.Pod
		want string
	}{
		"restart all":        {action(core.ContainerRestartRuleActionRestartAllContainers), ""},
		"restart":            {action(core.ContainerRestartRuleActionRestart), ""},
		"a list that is set": {&core.Pod{Spec: core.PodSpec{ResourceClaims: []core.PodResourceClaim{}}}, ""},
	} {
		found, err := Judge(c.pod, nil)
		var got []string
		for _, f := range found {
			got = append(got, fmt.Sprint(f.Field, " ", f.Does))
		}
		if s := strings.Join(got, ", "); err != nil || s != c.want {
			t.Errorf("%s: %q, want %q: %v", name, s, c.want, err)
		}
	}
}
