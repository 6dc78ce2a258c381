package devicetaints

import (
	"context"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

func TestJudgeTaint(t *testing.T) {
	added := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	taint := resourceapi.DeviceTaint{Key: "broken", Value: "fan", Effect: resourceapi.DeviceTaintEffectNoExecute, TimeAdded: &metav1.Time{Time: added}}
	for name, c := range map[string]struct {
		tolerations []resourceapi.DeviceToleration
		want        sentence
	}{
		"not tolerated": {nil, sentence{true, added}},
		"tolerated": {[]resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists, Effect: resourceapi.DeviceTaintEffectNoExecute}},
			sentence{}},
		"tolerated for another effect": {[]resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists, Effect: resourceapi.DeviceTaintEffectNoSchedule}},
			sentence{true, added}},
		"another value": {[]resourceapi.DeviceToleration{{Key: "broken", Value: "disk", Effect: resourceapi.DeviceTaintEffectNoExecute}}, sentence{true, added}},
		"the shorter of two limits": {[]resourceapi.DeviceToleration{
			{Key: "broken", Value: "fan", Effect: resourceapi.DeviceTaintEffectNoExecute, TolerationSeconds: new(int64(60))},
			{Key: "broken", Value: "fan", Effect: resourceapi.DeviceTaintEffectNoExecute, TolerationSeconds: new(int64(5))},
		}, sentence{true, added.Add(5 * time.Second)}},
		"a limit below zero": {[]resourceapi.DeviceToleration{
			{Operator: resourceapi.DeviceTolerationOpExists, Effect: resourceapi.DeviceTaintEffectNoExecute, TolerationSeconds: new(int64(-5))},
		}, sentence{true, added}},
	} {
		if got := judgeTaint(taint, c.tolerations); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func slice(name string, generation int64, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "d", Pool: resourceapi.ResourcePool{Name: "pool", Generation: generation, ResourceSliceCount: 1}, Devices: devices,
	}}
}

func tainted(name string) resourceapi.Device {
	return resourceapi.Device{Name: name, Taints: []resourceapi.DeviceTaint{{Key: "k", Effect: resourceapi.DeviceTaintEffectNoExecute}}}
}

func TestOldGenerationsOfAPoolDoNotCount(t *testing.T) {
	slices := []*resourceapi.ResourceSlice{slice("old", 1, tainted("x")), slice("new", 2, resourceapi.Device{Name: "y"})}
	if d := deviceIn(slices, "x"); d != nil {
		t.Errorf("%+v", d)
	}
	if d := deviceIn(slices, "y"); d == nil {
		t.Error("the device of the newest generation is not found")
	}
}

func TestATaintThatComesLaterEvictsThePodsOfTheDevice(t *testing.T) {
	pod := func(name, claim string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid"},
			Spec: v1.PodSpec{NodeName: "n", ResourceClaims: []v1.PodResourceClaim{{Name: "c", ResourceClaimName: &claim}}}}
	}
	claim := func(name, pod, device string) *resourceapi.ResourceClaim {
		return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Status: resourceapi.ResourceClaimStatus{
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod, UID: "uid"}},
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: "d", Pool: "pool", Device: device}}}},
		}}
	}
	client := fake.NewClientset(pod("a", "ca"), pod("b", "cb"), claim("ca", "a", "x"), claim("cb", "b", "y"),
		slice("s", 1, resourceapi.Device{Name: "x"}, resourceapi.Device{Name: "y"}))
	events := workqueuetest.Start(t, client, func(e workqueue.Env) (workqueue.Runner, error) { return New(e, 1) })
	if _, err := client.ResourceV1().ResourceSlices().Update(t.Context(), slice("s", 1, tainted("x"), resourceapi.Device{Name: "y"}), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	workqueuetest.Eventually(t, "pod a is gone", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Pods("ns").Get(ctx, "a", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	if e := <-events; e != "Normal DeviceTaintManagerEviction Marking for deletion" {
		t.Error(e)
	}
	if _, err := client.CoreV1().Pods("ns").Get(t.Context(), "b", metav1.GetOptions{}); err != nil {
		t.Error("the pod of the other device:", err)
	}
}
