package eviction

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestTheDefaultsAreTheKubelets(t *testing.T) {
	c, err := DefaultFlags().Parse()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, th := range c.Thresholds {
		value := "-"
		if th.Value.Amount != nil {
			value = th.Value.Amount.String()
		} else {
			q := th.Value.of(1000)
			value = q.String() + "/1000"
		}
		got = append(got, string(th.Signal)+"<"+value)
		if th.Soft || th.Grace != 0 {
			t.Errorf("%s is soft", th.Signal)
		}
	}
	want := "memory.available<100Mi allocatableMemory.available<100Mi nodefs.available<100/1000 nodefs.inodesFree<50/1000 imagefs.available<150/1000 imagefs.inodesFree<50/1000"
	if s := strings.Join(got, " "); s != want || c.TransitionPeriod != 5*time.Minute || c.MaxPodGrace != 0 {
		t.Errorf("%s, transition %s, grace %d", s, c.TransitionPeriod, c.MaxPodGrace)
	}
	kept := c.Reserved(v1.ResourceList{v1.ResourceMemory: resource.MustParse("8Gi"), v1.ResourceEphemeralStorage: resource.MustParse("100G")})
	if m, d := kept[v1.ResourceMemory], kept[v1.ResourceEphemeralStorage]; m.String() != "100Mi" || d.Value() != 10e9 || len(kept) != 2 {
		t.Errorf("kept from pods: %v", kept)
	}
}

func TestSoftThresholdsHaveTheirGraceAndMinimumReclaim(t *testing.T) {
	c, err := Flags{
		Hard: map[string]string{"pid.available": "10%", "memory.available": "0%"}, Soft: map[string]string{"memory.available": "1.5Gi"},
		SoftGrace: map[string]string{"memory.available": "1m30s"}, MinimumReclaim: map[string]string{"memory.available": "500Mi", "pid.available": "5%"},
	}.Parse()
	if err != nil || len(c.Thresholds) != 2 {
		t.Fatal(c, err)
	}
	hard, soft := c.Thresholds[0], c.Thresholds[1]
	if hard.Signal != PIDAvailable || hard.MinReclaim.Fraction != 0.05 {
		t.Errorf("%+v", hard)
	}
	if !soft.Soft || soft.Grace != 90*time.Second || soft.Value.Amount.String() != "1536Mi" || soft.MinReclaim.Amount.String() != "500Mi" {
		t.Errorf("%+v", soft)
	}
}

func TestAllFaultsOfTheFlagsAreReportedAtOnce(t *testing.T) {
	_, err := Flags{
		Hard: map[string]string{"memory.available": "lots", "memory.free": "1Gi", "containerfs.available": "5%", "allocatableMemory.available": "1Gi",
			"nodefs.available": "101%", "imagefs.available": "0", "pid.available": "-1"},
		Soft:           map[string]string{"nodefs.available": "10%", "memory.available": "1Gi"},
		SoftGrace:      map[string]string{"imagefs.available": "1m", "memory.available": "soon"},
		MinimumReclaim: map[string]string{"memory.available": "-5%"},
		MaxPodGrace:    -1, TransitionPeriod: -time.Second,
	}.Parse()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"--eviction-hard memory.available<lots: give an amount such as 100Mi, or a share such as 10%",
		"--eviction-hard memory.free: unknown signal; there are memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree, pid.available",
		"--eviction-hard containerfs.available: containers are on the file system of images; set imagefs.available",
		"--eviction-hard allocatableMemory.available: it has the threshold of memory.available",
		"--eviction-hard nodefs.available<101%: give 0% to 100%",
		"--eviction-hard imagefs.available<0: give an amount above 0, or 0% for no threshold",
		"--eviction-hard pid.available<-1: give an amount",
		"--eviction-soft nodefs.available: --eviction-soft-grace-period has no time for it",
		"--eviction-soft-grace-period imagefs.available=1m: --eviction-soft has no threshold of this signal",
		"--eviction-soft-grace-period memory.available=soon: give a time such as 90s",
		"--eviction-minimum-reclaim memory.available=-5%: give 0% to 100%",
		"--eviction-max-pod-grace-period -1: give 0 or more seconds",
		"--eviction-pressure-transition-period -1s: give 0 or more",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
}
