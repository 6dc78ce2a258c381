package attachdetach

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

func disk(modes ...v1.PersistentVolumeAccessMode) *v1.PersistentVolume {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: v1.PersistentVolumeSpec{AccessModes: modes,
		ClaimRef:               &v1.ObjectReference{Namespace: "ns", Name: "c", UID: "u"},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}}}}
}

func machine(name string, change ...func(*v1.Node)) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}}}
	for _, c := range change {
		c(n)
	}
	return n
}

func using(n *v1.Node)  { n.Status.VolumesInUse = []v1.UniqueVolumeName{"kubernetes.io/csi/d^h"} }
func silent(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionUnknown }
func tainted(n *v1.Node) {
	n.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeOutOfService, Effect: v1.TaintEffectNoExecute}}
}

func TestWhatBecomesOfAttachments(t *testing.T) {
	at := time.Unix(1e9, 0)
	name := attachmentName(disk().Spec.CSI, "n")
	for _, c := range []struct {
		what   string
		node   *v1.Node
		wanted bool
		have   bool
		since  time.Duration // ago
		holder string
		modes  []v1.PersistentVolumeAccessMode
		want   string
	}{
		{what: "a pod came", node: machine("n"), wanted: true, want: "attach"},
		{what: "it is attached", node: machine("n"), wanted: true, have: true, want: ""},
		{what: "another node has it", node: machine("n"), wanted: true, holder: "m", modes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, want: "blocked again 1s"},
		{what: "another node shares it", node: machine("n"), wanted: true, holder: "m", modes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}, want: "attach"},
		{what: "the pod went, and it is unmounted", node: machine("n"), have: true, want: "detach"},
		{what: "the pod went, and it is mounted", node: machine("n", using), have: true, since: time.Hour, want: ""},
		{what: "the node is silent", node: machine("n", using, silent), have: true, since: time.Minute, want: "again 5m0s"},
		{what: "the node was silent for long", node: machine("n", using, silent), have: true, since: 6 * time.Minute, want: "detach"},
		{what: "the node is out of service", node: machine("n", using, silent, tainted), have: true, want: "detach"},
		{what: "the node is gone", have: true, want: "detach"},
		{what: "a pod of a node that is gone", wanted: true, want: ""},
		{what: "the node is out of service and its pod is there", node: machine("n", using, tainted), have: true, wanted: true, want: ""},
	} {
		s := situation{node: c.node, wanted: map[string]*v1.PersistentVolume{}, have: map[string]have{}, holders: map[string]string{"pv": c.holder}, now: at}
		pv := disk(c.modes...)
		if c.wanted {
			s.wanted[name] = pv
		}
		if c.have {
			s.have[name] = have{attachment(pv, "n"), inUseName(pv.Spec.CSI), at.Add(-c.since)}
		}
		p, got := decide(s), ""
		for what, n := range map[string]int{"attach": len(p.attach), "detach": len(p.detach), "blocked": len(p.blocked)} {
			if n > 0 {
				got += what
			}
		}
		if p.again > 0 {
			got += fmt.Sprintf(" again %v", p.again)
		}
		if got = strings.TrimSpace(got); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
	ending := attachment(disk(), "n")
	ending.DeletionTimestamp = &metav1.Time{Time: at}
	if p := decide(situation{node: machine("n"), have: map[string]have{name: {VolumeAttachment: ending}}, now: at}); len(p.detach) != 0 {
		t.Error("an attachment is deleted twice")
	}
}

func user(name, node string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{NodeName: node, Volumes: []v1.Volume{
		{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}}}
}

func boundClaim() *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"}, Spec: v1.PersistentVolumeClaimSpec{VolumeName: "pv"},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound}}
}

func start(t *testing.T, objects ...runtime.Object) (*fake.Clientset, <-chan string) {
	t.Helper()
	client := fake.NewClientset(objects...)
	return client, workqueuetest.Start(t, client, func(env workqueue.Env) (workqueue.Runner, error) { return New(env, 2) })
}

func says(t *testing.T, events <-chan string, words string) {
	t.Helper()
	for {
		select {
		case e := <-events:
			if strings.Contains(e, words) {
				return
			}
		case <-time.After(time.Minute):
			t.Fatalf("no event says %q", words)
		}
	}
}

// TestAVolumeMovesWithItsPod: from one node to the other, and never to both.
func TestAVolumeMovesWithItsPod(t *testing.T) {
	client, events := start(t, machine("n1", using), machine("n2"), disk(v1.ReadWriteOnce), boundClaim(), user("p1", "n1"))
	attachments := client.StorageV1().VolumeAttachments()
	first, second := attachmentName(disk().Spec.CSI, "n1"), attachmentName(disk().Spec.CSI, "n2")
	await := func(name string, there bool) (va *storagev1.VolumeAttachment) {
		t.Helper()
		workqueuetest.Eventually(t, fmt.Sprintf("attachment %s: %v", name, there), func(ctx context.Context) (bool, error) {
			got, err := attachments.Get(ctx, name, metav1.GetOptions{})
			va = got
			return there == (err == nil) && (err == nil || apierrors.IsNotFound(err)), nil
		})
		return va
	}
	va := await(first, true)
	if va.Spec.Attacher != "d" || va.Spec.NodeName != "n1" || *va.Spec.Source.PersistentVolumeName != "pv" {
		t.Errorf("%+v", va.Spec)
	}
	va.Status.Attached = true
	if _, err := attachments.UpdateStatus(t.Context(), va, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	says(t, events, `SuccessfulAttachVolume AttachVolume.Attach succeeded for volume "pv"`)
	workqueuetest.Eventually(t, "the Node says so", func(ctx context.Context) (bool, error) {
		n, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		return err == nil && len(n.Status.VolumesAttached) == 1 && n.Status.VolumesAttached[0].Name == "kubernetes.io/csi/d^h", err
	})

	if _, err := client.CoreV1().Pods("ns").Create(t.Context(), user("p2", "n2"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	says(t, events, "Multi-Attach error for volume \"pv\" Volume is already exclusively attached to node n1")
	if err := client.CoreV1().Pods("ns").Delete(t.Context(), "p1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	says(t, events, "Multi-Attach") // n1 still has it mounted
	await(first, true)
	await(second, false)
	if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), machine("n1"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(first, false)
	await(second, true)
}

func TestVolumesOfDriversThatNeedNoneAreNotAttached(t *testing.T) {
	no := false
	driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: storagev1.CSIDriverSpec{AttachRequired: &no}}
	other := disk(v1.ReadWriteOnce)
	other.Name, other.Spec.CSI.Driver, other.Spec.ClaimRef = "pv2", "attached", &v1.ObjectReference{Namespace: "ns", Name: "c2", UID: "u2"}
	claim := boundClaim()
	claim.Name, claim.UID, claim.Spec.VolumeName = "c2", "u2", "pv2"
	pod := user("p2", "n1")
	pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "c2"
	foreign := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}, Spec: storagev1.VolumeAttachmentSpec{Attacher: "d", NodeName: "n1",
		Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &other.Name}}}
	client, _ := start(t, machine("n1"), driver, disk(v1.ReadWriteOnce), boundClaim(), user("p1", "n1"), other, claim, pod, foreign)
	workqueuetest.Eventually(t, "the volume of the other driver is attached", func(ctx context.Context) (bool, error) {
		_, err := client.StorageV1().VolumeAttachments().Get(ctx, attachmentName(other.Spec.CSI, "n1"), metav1.GetOptions{})
		return err == nil, nil
	})
	all, err := client.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(all.Items) != 2 {
		t.Errorf("%d attachments, want the one and the one made by hand: %v", len(all.Items), err)
	}
}
