package resourceclaim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

func consumer(name string) resourceapi.ResourceClaimConsumerReference {
	return resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: types.UID(name)}
}

func consumers(names ...string) (out []resourceapi.ResourceClaimConsumerReference) {
	for _, n := range names {
		out = append(out, consumer(n))
	}
	return out
}

func TestDecide(t *testing.T) {
	now := metav1.Now()
	for name, c := range map[string]struct {
		reserved, left     []resourceapi.ResourceClaimConsumerReference
		foreign, deleted   bool // allocated by another program, being deleted
		unallocated, ended bool
		want               string
	}{
		"in use":                         {reserved: consumers("a"), left: consumers("a"), want: ""},
		"one of two left":                {reserved: consumers("a", "b"), left: consumers("b"), want: "status reserved=1 allocated=true"},
		"none left":                      {reserved: consumers("a"), want: "status reserved=0 allocated=false finalizer"},
		"none left, of an ended pod":     {reserved: consumers("a"), ended: true, want: "status reserved=0 allocated=false finalizer remove"},
		"none left, allocated elsewhere": {reserved: consumers("a"), foreign: true, want: "status reserved=0 allocated=true"},
		"reserved for none yet":          {want: ""},
		"deleted, allocated, unused":     {deleted: true, want: "status reserved=0 allocated=false finalizer"},
		"deleted, not allocated":         {deleted: true, unallocated: true, want: "finalizer"},
		"deleted, in use":                {reserved: consumers("a"), left: consumers("a"), deleted: true, want: ""},
		"of an ended pod, in use":        {reserved: consumers("a"), left: consumers("a"), ended: true, want: ""},
		"of an ended pod, unused":        {foreign: true, unallocated: true, ended: true, want: "remove"},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{ReservedFor: c.reserved}}
			if !c.unallocated {
				claim.Status.Allocation = &resourceapi.AllocationResult{}
			}
			if !c.foreign {
				claim.Finalizers = []string{"other", resourceapi.Finalizer}
			}
			if c.deleted {
				claim.DeletionTimestamp = &now
			}
			before := claim.DeepCopy()
			p := decide(claim, c.left, c.ended)
			var got []string
			if p.status != nil {
				got = append(got, fmt.Sprintf("status reserved=%d allocated=%t", len(p.status.Status.ReservedFor), p.status.Status.Allocation != nil))
			}
			if p.dropFinalize {
				got = append(got, "finalizer")
			}
			if p.remove {
				got = append(got, "remove")
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("%q, want %q", s, c.want)
			}
			if len(before.Status.ReservedFor) != len(claim.Status.ReservedFor) {
				t.Error("the cached claim was changed")
			}
		})
	}
}

func TestGeneratedNamesFit(t *testing.T) {
	if got := baseName("pod", "gpu"); got != "pod-gpu-" {
		t.Error(got)
	}
	long := baseName(strings.Repeat("p", 80), strings.Repeat("c", 40))
	if len(long) > longestBase || !strings.HasPrefix(long, "ppp") || !strings.HasSuffix(long, "ccc") {
		t.Errorf("%q has %d characters", long, len(long))
	}
}

func podWith(name string, entry v1.PodResourceClaim) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{ResourceClaims: []v1.PodResourceClaim{entry}}}
}

func template() *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "t"}, Spec: resourceapi.ResourceClaimTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"from": "template"}, Annotations: map[string]string{"a": "b"}},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r"}}}},
	}}
}

// generateNames does what the API server does with generateName.
func generateNames(client *fake.Clientset) {
	var serial atomic.Int32
	client.PrependReactor("create", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		claim := a.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceClaim)
		claim.Name = fmt.Sprintf("%s%d", claim.GenerateName, serial.Add(1))
		claim.UID = types.UID(claim.Name)
		return false, nil, nil
	})
}

func start(t *testing.T, client *fake.Clientset) <-chan string {
	return workqueuetest.Start(t, client, func(e workqueue.Env) (workqueue.Runner, error) { return New(e, 2) })
}

func TestATemplateBecomesOneClaimThatThePodNames(t *testing.T) {
	client := fake.NewClientset(podWith("p", v1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: new("t")}))
	generateNames(client)
	events := start(t, client)
	if e := <-events; !strings.Contains(e, `FailedResourceClaimCreation PodResourceClaim gpu: resource claim template "t"`) {
		t.Fatal(e)
	}
	if _, err := client.ResourceV1().ResourceClaimTemplates("ns").Create(t.Context(), template(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	workqueuetest.Eventually(t, "the pod names its claim", func(ctx context.Context) (bool, error) {
		p, err := client.CoreV1().Pods("ns").Get(ctx, "p", metav1.GetOptions{})
		return err == nil && len(p.Status.ResourceClaimStatuses) == 1 && *p.Status.ResourceClaimStatuses[0].ResourceClaimName == "p-gpu-1", err
	})
	claims, err := client.ResourceV1().ResourceClaims("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(claims.Items) != 1 {
		t.Fatal(len(claims.Items), err)
	}
	c := &claims.Items[0]
	if c.Labels["from"] != "template" || c.Annotations["a"] != "b" || c.Annotations[resourceapi.PodResourceClaimAnnotation] != "gpu" ||
		owner(c).UID != "p" || c.Spec.Devices.Requests[0].Name != "r" {
		t.Errorf("%+v", c)
	}
}

func TestAClaimIsFreeWhenItsPodHasEnded(t *testing.T) {
	pod := podWith("p", v1.PodResourceClaim{Name: "gpu", ResourceClaimName: new("c")})
	pod.Spec.NodeName = "n"
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c", Finalizers: []string{resourceapi.Finalizer}},
		Status:     resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}},
	}
	client := fake.NewClientset(pod, claim)
	start(t, client)
	get := func(ctx context.Context) *resourceapi.ResourceClaim {
		c, err := client.ResourceV1().ResourceClaims("ns").Get(ctx, "c", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	workqueuetest.Eventually(t, "a pod that named its node itself has its reservation", func(ctx context.Context) (bool, error) {
		return slices.Equal(get(ctx).Status.ReservedFor, consumers("p")), nil
	})
	pod = pod.DeepCopy()
	pod.Status.Phase = v1.PodSucceeded
	if _, err := client.CoreV1().Pods("ns").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	workqueuetest.Eventually(t, "the claim is free", func(ctx context.Context) (bool, error) {
		c := get(ctx)
		return len(c.Status.ReservedFor) == 0 && c.Status.Allocation == nil && len(c.Finalizers) == 0, nil
	})
}
