package shutdown

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestGroupsOfTheFlags(t *testing.T) {
	for name, c := range map[string]struct {
		flags Flags
		want  string
	}{
		"none":              {Flags{}, "[]"},
		"two":               {Flags{Period: 30 * time.Second, Critical: 10 * time.Second}, "[{0 20s} {2000000000 10s}]"},
		"none for critical": {Flags{Period: 30 * time.Second}, "[{0 30s} {2000000000 0s}]"},
		"by priority":       {Flags{ByPriority: map[string]string{"100000": "10s", "0": "1m", "-5": "3s"}}, "[{-5 3s} {0 1m0s} {100000 10s}]"},
	} {
		if got, err := c.flags.Parse(); err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v %v, want %s", name, got, err, c.want)
		}
	}
	_, err := Flags{Period: time.Millisecond, Critical: time.Minute, ByPriority: map[string]string{"high": "1s", "1": "soon", "2": "-1s"}}.Parse()
	for _, want := range []string{
		"--shutdown-grace-period 1ms: give 1s or more", "--shutdown-grace-period-critical-pods 1m0s: give 1s or more, up to", "not both",
		"by-pod-priority high=1s: give", "by-pod-priority 1=soon: give", "by-pod-priority 2=-1s: give",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
}

func TestPodsEndByPriorityTheLowestFirst(t *testing.T) {
	pod := func(name string, priority int32, grace int64) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{Priority: &priority, TerminationGracePeriodSeconds: &grace}}
	}
	groups := []Group{{0, 20 * time.Second}, {100, 5 * time.Second}, {1000, 10 * time.Second}}
	pods := []*v1.Pod{pod("critical", 2000, 60), pod("plain", 0, 60), pod("least", -7, 3), pod("below", 999, 60), pod("nobodys", 50, 60)}
	var got []string
	for _, w := range Plan(groups, pods) {
		for _, p := range w.Pods {
			got = append(got, fmt.Sprintf("%s:%s:%d", w.Grace, p.Name, GraceOf(p, w.Grace)))
		}
	}
	want := "20s:plain:20 20s:least:3 20s:nobodys:20 5s:below:5 10s:critical:10"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("%s, want %s", s, want)
	}
	if w := Plan(groups, pods[1:2]); len(w) != 1 || Total(groups) != 35*time.Second || len(Plan(nil, pods)) != 0 {
		t.Errorf("%+v, %s", w, Total(groups))
	}
}
