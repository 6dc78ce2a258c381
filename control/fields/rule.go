package fields

import (
	"fmt"
	"reflect"
	"strings"
)

// Verdict is what happens to an object that sets a field without effect.
type Verdict string

const (
	// Refused objects are not stored. Templates of pods are stored with a warning: upstream's strategies drop from them what
	// its feature gates switch off, and the pods made from them are refused for the rest.
	Refused Verdict = "refused"
	// Said is a warning for the writer.
	Said Verdict = "said"
)

// Rule is one field, or a few side by side, that have no effect here.
type Rule struct {
	// Kind is the kind's name. What is said of a Pod is said of each template of pods too.
	Kind string
	// Path names the field as users write it: "spec.volumes[*].{nfs,csi}". [*] is each element of a list, [name] a key of a
	// map, {a,b} one or the other. An empty path is the whole object.
	Path string
	// Is is the value that has no effect; empty: any.
	Is string
	// Where holds a field beside the last one to a value. It may be nil.
	Where *Beside
	// Resize: the rule judges requests to change a running pod's resources, and no others.
	Resize bool
	Does   Verdict
	// Says is what the user reads after the field's name: what does not happen, and what to do.
	Says string
}

// Beside is a condition on a field of the same struct.
type Beside struct{ Field, Value string }

// Name is how the table calls the rule.
func (r Rule) Name() string {
	name := strings.TrimSpace(r.Kind + " " + r.Path)
	if r.Is != "" {
		name += "=" + r.Is
	}
	if r.Resize {
		name += " (resize)"
	}
	return name
}

// step leads from a value to those below it.
type step struct {
	field []int  // of a struct
	each  bool   // every element of a list
	key   string // of a map
	name  string // as users write it
}

// path is a compiled way through a type.
type path []step

// compile finds the steps of text in t. Names are compared without case: the internal types have no names in JSON.
func compile(t reflect.Type, text string) (path, error) {
	var out path
	for _, part := range strings.Split(text, ".") {
		name, index, _ := strings.Cut(part, "[")
		t = target(t)
		if t.Kind() != reflect.Struct {
			return nil, fmt.Errorf("%s: %s is no struct", text, t)
		}
		f, ok := t.FieldByNameFunc(func(n string) bool { return strings.EqualFold(n, name) })
		if !ok {
			return nil, fmt.Errorf("%s: %s has no field %s", text, t, name)
		}
		out = append(out, step{field: f.Index, name: name})
		t = f.Type
		switch index = strings.TrimSuffix(index, "]"); {
		case index == "*":
			out, t = append(out, step{each: true}), target(t).Elem()
		case index != "":
			out, t = append(out, step{key: index}), target(t).Elem()
		}
	}
	return out, nil
}

func target(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// found is a field that is set: the value, the struct that holds it, and its name as users write it.
type found struct {
	value, holder reflect.Value
	at            string
}

// walk calls fn for each field that is set at the end of p, until fn returns false.
func (p path) walk(v, holder reflect.Value, at string, fn func(found) bool) bool {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return true
		}
		v = v.Elem()
	}
	if len(p) == 0 {
		return empty(v) || fn(found{v, holder, at})
	}
	switch s := p[0]; {
	case s.each:
		for i := range v.Len() {
			if !p[1:].walk(v.Index(i), holder, fmt.Sprintf("%s[%d]", at, i), fn) {
				return false
			}
		}
		return true
	case s.key != "":
		for _, k := range v.MapKeys() {
			if k.String() == s.key {
				return p[1:].walk(v.MapIndex(k), holder, at+"["+s.key+"]", fn)
			}
		}
		return true
	default:
		f, err := v.FieldByIndexErr(s.field)
		if err != nil {
			return true // below an embedded pointer that is nil
		}
		if at != "" {
			at += "."
		}
		if len(p) == 1 && f.Kind() == reflect.Pointer && !f.IsNil() {
			// A pointer that is set says something, also when it points at nothing but zeros.
			return fn(found{f.Elem(), v, at + s.name})
		}
		return p[1:].walk(f, v, at+s.name, fn)
	}
}

func empty(v reflect.Value) bool {
	if v.Kind() == reflect.Slice || v.Kind() == reflect.Map {
		return v.Len() == 0
	}
	return v.IsZero()
}
