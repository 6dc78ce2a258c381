package fields

import (
	"fmt"
	"reflect"
	"strings"
)

// Verdict says what happens to an object that sets a field without effect.
type Verdict string

const (
	// Refused: the object is not stored. An object with a pod template is stored with a warning instead: upstream's
	// strategies drop the fields whose feature gates are off, and pods made from the template are refused because of
	// the others.
	Refused Verdict = "refused"
	// Said: the client gets a warning.
	Said Verdict = "said"
)

// Rule names one field, or a few of the same struct, without effect here.
type Rule struct {
	// Kind is the kind's name. A rule for Pod applies to every pod template too.
	Kind string
	// Path is the field as users write it: "spec.volumes[*].{nfs,csi}". [*] is each element of a list or map, [name] a key of
	// a map, {a,b} either field. An empty path is the whole object.
	Path string
	// Is is the value without effect; empty: any value.
	Is string
	// Where is a condition on a field beside the last one; nil: none.
	Where *Beside
	// Unless names fields beside the last one, separated by commas: where one is set, the rule does not hold.
	Unless string
	Does   Verdict
	// Says is the message after the field's name: what does not happen, and what to do.
	Says string
}

// Beside is a condition on a field of the same struct.
type Beside struct{ Field, Value string }

// Name is the rule's name in the table.
func (r Rule) Name() string {
	name := strings.TrimSpace(r.Kind + " " + r.Path)
	if r.Is != "" {
		name += "=" + r.Is
	}
	return name
}

// step leads from a value to values below it.
type step struct {
	field []int  // of a struct
	each  bool   // every element of a list or map
	key   string // of a map
	name  string // as users write it
}

// path is a field path compiled for a type.
type path []step

// compile finds the steps of text in t. It compares names without case, because internal types have no JSON names.
func compile(t reflect.Type, text string) (path, error) {
	var out path
	for _, part := range strings.Split(text, ".") {
		name, index, _ := strings.Cut(part, "[")
		t = target(t)
		if t.Kind() != reflect.Struct {
			return nil, fmt.Errorf("%s: %s is not a struct", text, t)
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

// found is a field that is set: its value, the struct that holds it, and its path as users write it.
type found struct {
	value, holder reflect.Value
	at            string
}

// walk calls fn for each set field at the end of p, until fn returns false.
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
	case s.each && v.Kind() == reflect.Map:
		for _, k := range v.MapKeys() {
			if !p[1:].walk(v.MapIndex(k), holder, at+"["+k.String()+"]", fn) {
				return false
			}
		}
		return true
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
			return true // below a nil embedded pointer
		}
		if at != "" {
			at += "."
		}
		if len(p) == 1 && f.Kind() == reflect.Pointer && !f.IsNil() {
			// A pointer counts as set even if it points to a zero value.
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
