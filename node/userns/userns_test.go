package userns

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

func within(s Span) func() (Span, error) { return func() (Span, error) { return s, nil } }

// TestNoTwoPodsShareAnID: whatever pods come and go, and however often the agent restarts between.
func TestNoTwoPodsShareAnID(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "userns")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		span := Span{First: 3 * PerPod, Count: rapid.IntRange(1, 5).Draw(t, "count")}
		r := New(dir, 1, within(span))
		has := map[types.UID]Range{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			pod := types.UID(fmt.Sprintf("pod%d", rapid.IntRange(0, 6).Draw(t, "pod")))
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				r = New(dir, 1, within(span))
			case 1:
				if err := r.Release(pod); err != nil {
					t.Fatal(err)
				}
				delete(has, pod)
			default:
				got, err := r.Take(pod)
				was, known := has[pod]
				switch {
				case err != nil && !known && len(has) == span.Count:
					continue
				case err != nil:
					t.Fatal(err)
				case known && got != was:
					t.Fatalf("%s had %v and has %v", pod, was, got)
				case got.First < span.First || got.First%PerPod != 0 || int(got.First) >= int(span.First)+span.Count*PerPod:
					t.Fatalf("%s has %v, outside of %v", pod, got, span)
				}
				has[pod] = got
				for other, o := range has {
					if other != pod && o == got {
						t.Fatalf("%s and %s both have %v", pod, other, got)
					}
				}
			}
		}
	})
}

func TestAFreedRangeIsUsedLast(t *testing.T) {
	r := New(t.TempDir(), 1, within(Span{PerPod, 3}))
	a, _ := r.Take("a")
	if err := r.Release("a"); err != nil {
		t.Fatal(err)
	}
	if b, err := r.Take("b"); err != nil || b == a {
		t.Errorf("b has %v, %v", b, err)
	}
}

func TestFaultyFilesAreNamed(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"not JSON":   {"{", "JSON"},
		"too short":  {`{"uidMappings":[{"hostId":65536,"length":10}],"gidMappings":[{"hostId":65536,"length":10}]}`, "one range of 65536"},
		"of another": {`{"uidMappings":[{"hostId":65536,"length":65536}],"gidMappings":[{"hostId":131072,"length":65536}]}`, "one range of 65536"},
		"outside":    {`{"uidMappings":[{"hostId":0,"length":65536}],"gidMappings":[{"hostId":0,"length":65536}]}`, "not for pods"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, "p"), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "p", file), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := New(dir, 1, within(Everything())).Take("q"); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "user namespace of pod p") {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestTooFewIDsForTheNodesPods(t *testing.T) {
	if _, err := New(t.TempDir(), 110, within(Span{PerPod, 109})).Take("a"); err == nil {
		t.Error("a range although there are not enough")
	}
}

func TestSpansOfTheHost(t *testing.T) {
	if s := Everything(); s.First != 65536 || s.Count != 65535 {
		t.Errorf("everything is %+v", s)
	}
	for out, want := range map[string]Span{
		"0: kubelet 65536 2147483648\n": {65536, 32768},
		"0: kubelet 65536 4294901760\n": {65536, 65535},
		"":                              {},
		"0: kubelet 0 65536\n":          {},
		"0: kubelet 70000 65536\n":      {},
		"0: kubelet 65536 1000\n":       {},
		"0: kubelet 65536 4294967296\n": {},
		"0: kubelet x 65536\n":          {},
		"0: kubelet 65536 65536\n1: kubelet 131072 655360\n": {},
	} {
		if got, err := parseSpan(out); got != want || (err == nil) != (want.Count > 0) {
			t.Errorf("%q is %+v, %v; want %+v", out, got, err, want)
		}
	}
}
