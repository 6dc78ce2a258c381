package main

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/balsahq/balsa/control/corpus"
)

// enlarger finds the largest object of a kind that upstream takes: it sends one with everything in it, without storing
// it, and gives way where upstream complains: first with other values, then by leaving the field out.
type enlarger struct {
	ctx    context.Context
	server corpus.Server
	ask    corpus.Request // without its body
	seed   map[string]any
	wishes wishes
	within string // the field that may be changed; empty: all

	object  map[string]any
	tries   map[string]int
	dropped map[string]any // by path, what had to go
	order   []string
}

// most bounds the questions that one object may need.
const most = 200

// enlarge returns the object, and how many of the values that were wished for are in it.
func (e *enlarger) enlarge() (map[string]any, error) {
	e.tries, e.dropped = map[string]int{}, map[string]any{}
	e.object = clone(e.seed).(map[string]any)
	if status, err := e.post(); err != nil || status != nil {
		return nil, fmt.Errorf("the seed is not valid: %w %v", err, status)
	}
	e.object = e.start()
	var before map[string]any
	var complaint *metav1.Status
	for range most {
		status, err := e.post()
		if err != nil {
			return nil, err
		}
		if status == nil {
			return e.object, nil
		}
		if status.Reason == metav1.StatusReasonBadRequest && before != nil && !unknownField.MatchString(status.Message) {
			e.object, status = before, complaint // what was put there cannot even be read; what comes next may be
		}
		before, complaint = clone(e.object).(map[string]any), status
		if !e.giveWay(status) {
			return nil, fmt.Errorf("upstream does not say what is wrong: %s", status.Message)
		}
	}
	return nil, fmt.Errorf("not valid after %d questions", most)
}

func (e *enlarger) start() map[string]any {
	if e.wishes.whole == nil {
		return clone(e.seed).(map[string]any)
	}
	whole := clone(e.wishes.whole).(map[string]any)
	if e.within != "" {
		return merge(whole, clone(e.seed)).(map[string]any)
	}
	delete(whole, "metadata")
	for _, field := range []string{"status", "kind", "apiVersion"} {
		if _, ours := e.seed[field]; !ours {
			delete(whole, field)
		}
	}
	return merge(whole, clone(e.seed)).(map[string]any)
}

// post asks; nil means that the object is valid.
func (e *enlarger) post() (*metav1.Status, error) {
	r := e.ask
	var err error
	if r.Body, err = json.Marshal(e.object); err != nil {
		return nil, err
	}
	a, err := e.server.Ask(e.ctx, r)
	if err != nil || a.Status < 300 {
		return nil, err
	}
	status := &metav1.Status{}
	if err := json.Unmarshal(a.Body, status); err != nil {
		return nil, fmt.Errorf("%d %s", a.Status, a.Body)
	}
	return status, nil
}

var unknownField = regexp.MustCompile(`(?:unknown|duplicate) field "([^"]+)"`)

// giveWay changes what is complained about; false when it cannot be told.
func (e *enlarger) giveWay(status *metav1.Status) bool {
	changed := e.fixAll(status, false)
	for _, m := range unknownField.FindAllStringSubmatch(status.Message, -1) {
		changed = e.leaveOut(parsePath(m[1])) || changed
	}
	return changed || e.fixAll(status, true) || e.search(status.Message)
}

// fixAll gives way to all complaints. Only when climb is set does it change what holds a field that is not there: that
// field may just have been moved, or be called otherwise inside.
func (e *enlarger) fixAll(status *metav1.Status, climb bool) bool {
	if status.Details == nil {
		return false
	}
	changed, seen := false, map[string]bool{}
	for _, c := range status.Details.Causes {
		if !seen[c.Field] {
			seen[c.Field] = true
			changed = e.fix(c, climb) || changed
		}
	}
	return changed
}

// fix gives way to one complaint.
func (e *enlarger) fix(c metav1.StatusCause, climb bool) bool {
	path := e.real(parsePath(c.Field))
	if len(path) == 0 || path[0] == "<nil>" {
		return false
	}
	value, there := at(e.object, path)
	missing := !there && c.Type != metav1.CauseTypeFieldValueRequired
	if missing && !climb {
		return false
	}
	n := e.tries[c.Field]
	e.tries[c.Field]++
	if missing {
		return e.around(path, n)
	}
	if strings.Contains(c.Message, "may not specify more than") && e.apart(path, value) {
		return true
	}
	if c.Type == "FieldValueForbidden" || c.Type == metav1.CauseTypeFieldValueDuplicate || c.Type == "FieldValueTooMany" || c.Type == "FieldValueTooLong" {
		if n > 0 || c.Type != "FieldValueTooLong" {
			return e.leaveOut(path)
		}
	}
	options := e.options(path, value, c.Message)
	if n < len(options) {
		e.object = put(e.object, path, clone(options[n])).(map[string]any)
		return true
	}
	if !there {
		path = path[:len(path)-1]
	}
	return e.leaveOut(path)
}

// real is a path as the object has it: inside, some fields are written otherwise, and some of a pod are in its security
// context.
func (e *enlarger) real(path []step) []step {
	path = slices.Clone(path)
	for i := range path {
		v, _ := at(e.object, path[:i])
		m, ok := v.(map[string]any)
		if !ok || m[path[i]] != nil {
			continue
		}
		for k := range m {
			if strings.EqualFold(k, path[i]) {
				path[i] = k
			}
		}
	}
	if n := len(path); n > 1 {
		if _, there := at(e.object, path); !there {
			without := append(slices.Clone(path[:n-2]), path[n-1])
			if _, there := at(e.object, without); there {
				return without
			}
		}
	}
	return path
}

// around leaves out the nth of what is beside a field that is not there, and after the last what holds them all.
func (e *enlarger) around(path []step, n int) bool {
	for there := false; !there && len(path) > 1; {
		path = path[:len(path)-1]
		_, there = at(e.object, path)
	}
	holder, _ := at(e.object, path)
	if m, ok := holder.(map[string]any); ok {
		for _, k := range sortedKeys(m) {
			if e.leaveOut(append(slices.Clone(path), k)) {
				return true
			}
		}
	}
	return n > 0 && e.leaveOut(path)
}

// apart moves one of several things that exclude each other into an element of its own, where there is a list of
// them with names.
func (e *enlarger) apart(path []step, value any) bool {
	if len(path) < 2 {
		return false
	}
	list, _ := at(e.object, path[:len(path)-2])
	elements, ok := list.([]any)
	first, _ := at(e.object, path[:len(path)-1])
	f, isObject := first.(map[string]any)
	if !ok || !isObject || f["name"] == nil || len(elements) > 60 {
		return false
	}
	e.object = drop(e.object, path).(map[string]any)
	next := map[string]any{"name": fmt.Sprintf("n%d", len(elements)), path[len(path)-1]: value}
	e.object = put(e.object, path[:len(path)-2], append(elements, next)).(map[string]any)
	return true
}

func (e *enlarger) leaveOut(path []step) bool {
	value, there := at(e.object, path)
	if !there || len(path) == 0 || len(path) == 1 && path[0] == "metadata" || e.within != "" && path[0] != e.within {
		return false
	}
	if s, ok := at(e.seed, path); ok {
		if reflect.DeepEqual(s, value) {
			return false
		}
		e.object = put(e.object, path, clone(s)).(map[string]any)
		return true
	}
	e.dropped[join(path)] = value
	e.order = append(e.order, join(path))
	e.object = drop(e.object, path).(map[string]any)
	return true
}

var quoted = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)

// options are the values that are tried at a path, best first.
func (e *enlarger) options(path []step, value any, message string) []any {
	var out []any
	add := func(v any) {
		if v != nil && !slices.ContainsFunc(out, func(o any) bool { return fmt.Sprint(o) == fmt.Sprint(v) }) {
			out = append(out, v)
		}
	}
	if s, ok := at(e.seed, path); ok {
		add(s)
	}
	if _, supported, ok := strings.Cut(message, "supported values: "); ok {
		for _, m := range quoted.FindAllStringSubmatch(supported, -1) {
			add(m[1])
		}
	}
	for _, v := range alike(value) {
		add(v)
	}
	for _, f := range e.wishes.fuzz {
		if v, ok := at(f, path); ok && v != "" {
			add(v)
		}
	}
	return out
}

// search leaves fields out one after the other until the complaint is another one, for complaints that name no field.
func (e *enlarger) search(message string) bool {
	before := clone(e.object).(map[string]any)
	paths := candidates(before)
	slices.SortStableFunc(paths, func(a, b []step) int { return named(before, b, message) - named(before, a, message) })
	for _, path := range paths[:min(len(paths), 80)] {
		if e.within != "" && path[0] != e.within {
			continue
		}
		e.object = clone(before).(map[string]any)
		value, _ := at(e.object, path)
		e.object = drop(e.object, path).(map[string]any)
		status, err := e.post()
		if err != nil {
			return false
		}
		if status == nil || status.Message != message && (status.Details == nil || !complains(status, path)) {
			e.dropped[join(path)] = value
			e.order = append(e.order, join(path))
			return true
		}
	}
	return false
}

// named is 1 when a complaint quotes the value of a field, else 0.
func named(object map[string]any, path []step, message string) int {
	v, _ := at(object, path)
	switch v.(type) {
	case map[string]any, []any, bool, nil:
		return 0
	}
	if text := fmt.Sprint(v); len(text) > 1 && strings.Contains(message, text) {
		return 1
	}
	return 0
}

// regain puts back what had to go wherever it does no harm by now, with its own value or another.
func (e *enlarger) regain() {
	slices.Reverse(e.order)
	asked := 0
	for _, name := range slices.Compact(slices.Clone(e.order)) {
		path := strings.Split(name, "/")
		if _, there := at(e.object, path); there || asked > most {
			continue
		}
		if _, there := at(e.object, path[:len(path)-1]); !there {
			continue
		}
		for _, v := range append([]any{e.dropped[name]}, e.options(path, e.dropped[name], "")...) {
			before := clone(e.object).(map[string]any)
			e.object = put(e.object, path, clone(v)).(map[string]any)
			asked++
			if status, err := e.post(); err == nil && status == nil {
				delete(e.dropped, name)
				break
			}
			e.object = before
		}
	}
}

// lost is how many of the values that were wished for are not in the object.
func (e *enlarger) lost() int {
	n := 0
	for _, v := range e.dropped {
		n += leaves(v)
	}
	return n
}

// complains tells whether a field that was left out is asked for.
func complains(status *metav1.Status, path []step) bool {
	return slices.ContainsFunc(status.Details.Causes, func(c metav1.StatusCause) bool {
		return strings.HasPrefix(join(parsePath(c.Field)), join(path))
	})
}

// candidates are the paths of the fields of an object and of its spec's and template's.
func candidates(object map[string]any) [][]step {
	var out [][]step
	var walk func(v any, path []step, depth int)
	walk = func(v any, path []step, depth int) {
		if len(path) > 0 && path[0] != "metadata" {
			out = append(out, slices.Clone(path))
		}
		if depth == 0 {
			return
		}
		switch x := v.(type) {
		case map[string]any:
			for _, k := range sortedKeys(x) {
				if k != "kind" && k != "apiVersion" {
					walk(x[k], append(slices.Clone(path), k), depth-1)
				}
			}
		case []any:
			for i := range x {
				walk(x[i], append(slices.Clone(path), fmt.Sprint(i)), depth-1)
			}
		}
	}
	walk(object, nil, 9)
	slices.SortStableFunc(out, func(a, b []step) int { return len(a) - len(b) })
	return out
}
