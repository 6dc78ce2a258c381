package stats

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

func TestVolumesOfClaimsAreAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, pod := provider(t, runtimeStub{})
		for _, name := range []string{"good", "broken", "hanging"} {
			pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
		}
		asked := make(chan string, 100)
		p.cfg.Volume = func(ctx context.Context, _ *v1.Pod, name string) (*statsv1.VolumeStats, error) {
			asked <- name
			switch name {
			case "good":
				used := uint64(1) << 40
				return &statsv1.VolumeStats{Name: name, PVCRef: &statsv1.PVCReference{Name: name}, FsStats: statsv1.FsStats{UsedBytes: &used, CapacityBytes: &used}}, nil
			case "broken":
				return nil, errors.New("no answer")
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		summary := func() (times int, waited time.Duration) {
			t.Helper()
			began := time.Now()
			sum, err := p.Summary(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := sum.Pods[0].VolumeStats
			if len(got) != 1 || got[0].Name != "good" || got[0].PVCRef.Name != "good" {
				t.Fatalf("%+v", got)
			}
			if e := sum.Pods[0].EphemeralStorage; *e.UsedBytes >= 1<<40 {
				t.Errorf("a claim's volume counts as the pod's use of the node: %d", *e.UsedBytes)
			}
			for len(asked) > 0 {
				<-asked
				times++
			}
			return times, time.Since(began)
		}
		for _, step := range []struct {
			after time.Duration
			asked int
			waits time.Duration
		}{
			{0, 3, volumeWait},
			{time.Second, 0, 0}, // the answer is believed
			{minDiskTTL, 1, 0},  // the driver that hangs is not asked
			{silentTTL, 3, volumeWait},
		} {
			time.Sleep(step.after)
			if times, waited := summary(); times != step.asked || waited != step.waits {
				t.Errorf("after %s: asked %d times, want %d; %s, want %s", step.after, times, step.asked, waited, step.waits)
			}
		}
	})
}
