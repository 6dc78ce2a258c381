package csi

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestADriverIsRegisteredByItsSocketAndTakenOutWithIt(t *testing.T) {
	m := newMachine(t)
	m.driver.max = 7
	m.serve()
	m.start()
	ctx := t.Context()
	csiNode, err := m.client.StorageV1().CSINodes().Get(ctx, testNode, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := csiNode.Spec.Drivers
	if len(d) != 1 || d[0].Name != testDriver || d[0].NodeID != "id-of-n1" || *d[0].Allocatable.Count != 7 || d[0].TopologyKeys[0] != "topology.fake/zone" {
		t.Errorf("CSINode %+v", d)
	}
	if o := csiNode.OwnerReferences; len(o) != 1 || o[0].UID != "node-uid" {
		t.Errorf("owner %+v", o)
	}
	node := m.readNode()
	if node.Annotations[annNodeID] != `{"fake.csi.test":"id-of-n1"}` || node.Labels["topology.fake/zone"] != "z1" {
		t.Errorf("%v %v", node.Annotations, node.Labels)
	}
	m.await("the registrar is told", func() bool {
		m.driver.mu.Lock()
		defer m.driver.mu.Unlock()
		return len(m.driver.told) == 1 && m.driver.told[0].PluginRegistered
	})
	if err := os.Remove(filepath.Join(m.root, registryDir, "fake-reg.sock")); err != nil {
		t.Fatal(err)
	}
	m.await("the driver is gone from the CSINode", func() bool {
		n, err := m.client.StorageV1().CSINodes().Get(ctx, testNode, metav1.GetOptions{})
		return err == nil && len(n.Spec.Drivers) == 0 && m.readNode().Annotations[annNodeID] == ""
	})
	if _, err := m.node.Publish(ctx, request("a")); err == nil || !strings.Contains(err.Error(), "driver name fake.csi.test not found in the list of registered CSI drivers") {
		t.Error(err)
	}
}

func (m *machine) readNode() *v1.Node {
	n, err := m.client.CoreV1().Nodes().Get(m.t.Context(), testNode, metav1.GetOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}

// TestAVolumeIsStagedOnceAndPublishedToEachPod, over a restart of the agent too.
func TestAVolumeIsStagedOnceAndPublishedToEachPod(t *testing.T) {
	m := newMachine(t, withoutAttaching())
	m.serve()
	m.start()
	ctx := t.Context()
	for _, uid := range []string{"a", "b", "a"} {
		if _, err := m.node.Publish(ctx, request(uid)); err != nil {
			t.Fatal(err)
		}
	}
	m.restart()
	for _, uid := range []string{"a", "b"} {
		if _, err := m.node.Publish(ctx, request(uid)); err != nil {
			t.Fatal(err)
		}
	}
	if s, p := m.driver.count("stage"), m.driver.count("publish"); s != 1 || p != 2 || len(m.mounts()) != 3 {
		t.Errorf("staged %d times, published %d times, mounts %v", s, p, m.mounts())
	}
	if err := m.node.UnpublishPod(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if m.driver.count("unstage") != 0 || len(m.mounts()) != 2 {
		t.Error("the other pod's volume was taken away:", m.mounts())
	}
	m.end("b")
}

// end takes everything away from the pods and finds nothing left.
func (m *machine) end(uids ...string) {
	m.t.Helper()
	for _, uid := range uids {
		if err := m.node.UnpublishPod(m.t.Context(), testPod(uid).UID); err != nil {
			m.t.Fatal(err)
		}
	}
	left, err := m.node.allPodRecords()
	staged, err2 := m.node.stagedRecords()
	if err != nil || err2 != nil || len(left)+len(staged)+len(m.mounts()) != 0 {
		m.t.Errorf("left behind: %v %v %v %v %v", left, staged, m.mounts(), err, err2)
	}
}

// TestAnAgentThatEndsInTheMiddleLeaksNothing: each call to the driver fails once before and once after it did its work,
// and the agent's life ends there.
func TestAnAgentThatEndsInTheMiddleLeaksNothing(t *testing.T) {
	for _, at := range []string{"stage", "stage after", "publish", "publish after", "unpublish", "unpublish after", "unstage", "unstage after"} {
		for _, retried := range []bool{true, false} { // by the pod's set-up; or the pod is gone
			t.Run(at, func(t *testing.T) {
				m := newMachine(t, withoutAttaching())
				m.serve()
				m.start()
				m.driver.fail[at] = errFake
				_, err := m.node.Publish(t.Context(), request("a"))
				if err != nil && retried {
					m.restart()
					if _, err = m.node.Publish(t.Context(), request("a")); err != nil {
						t.Fatal(err)
					}
				}
				if len(m.mounts()) > 2 {
					t.Errorf("mounted twice: %v", m.mounts())
				}
				if err := m.node.UnpublishPod(t.Context(), "a"); err != nil {
					m.restart()
				}
				if err := m.node.UnpublishPod(t.Context(), "a"); err != nil {
					t.Fatal(err)
				}
				m.node.sweep(t.Context()) // what was staged before a pod's record was written
				m.end()
			})
		}
	}
}

func TestALimitThatChangesIsPublishedAtTheDriversPace(t *testing.T) {
	seconds := int64(60)
	m := newMachine(t, withoutAttaching(func(s *storagev1.CSIDriverSpec) { s.NodeAllocatableUpdatePeriodSeconds = &seconds }))
	m.driver.max = 7
	m.serve()
	m.start()
	limit := func() int32 {
		n, err := m.client.StorageV1().CSINodes().Get(t.Context(), testNode, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return *n.Spec.Drivers[0].Allocatable.Count
	}
	start := time.Now().Add(time.Hour)
	m.node.refreshLimits(t.Context(), start)
	m.driver.max = 9
	m.node.refreshLimits(t.Context(), start.Add(30*time.Second))
	if got := limit(); got != 7 {
		t.Errorf("asked before its time: %d", got)
	}
	m.node.refreshLimits(t.Context(), start.Add(61*time.Second))
	if got := limit(); got != 9 {
		t.Errorf("limit %d", got)
	}
	m.driver.max = 11
	d, err := m.node.driver(testDriver)
	if err != nil {
		t.Fatal(err)
	}
	m.node.foundFull(d)
	m.node.refreshLimits(t.Context(), start.Add(62*time.Second))
	if got := limit(); got != 11 {
		t.Errorf("a volume did not fit, and the limit is %d", got)
	}
}

func TestADriverIsToldOfThePod(t *testing.T) {
	yes := true
	spec := func(inSecrets bool) func(*storagev1.CSIDriverSpec) {
		return func(s *storagev1.CSIDriverSpec) {
			s.PodInfoOnMount, s.RequiresRepublish = &yes, &yes
			s.TokenRequests, s.ServiceAccountTokenInSecrets = []storagev1.TokenRequest{{Audience: "vault"}}, &inSecrets
			s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
		}
	}
	secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "key"}, Data: map[string][]byte{"k": []byte("v")}}
	for _, inSecrets := range []bool{false, true} {
		m := newMachine(t, withoutAttaching(spec(inSecrets)), secret)
		m.serve()
		m.start()
		r := Request{Pod: testPod("a"), Volume: &v1.Volume{Name: "inline", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{
			Driver: testDriver, ReadOnly: &yes, NodePublishSecretRef: &v1.LocalObjectReference{Name: "key"}}}},
			Tokens: func(_ context.Context, wanted []storagev1.TokenRequest) (string, error) {
				return "for " + wanted[0].Audience, nil
			}}
		for range 2 { // the driver wants to be told again
			if got, err := m.node.Publish(t.Context(), r); err != nil || !got.Republish {
				t.Fatal(got, err)
			}
		}
		p := m.driver.published
		const tokens = "csi.storage.k8s.io/serviceAccount.tokens"
		c := p.VolumeContext
		if c["csi.storage.k8s.io/pod.name"] != "pod-a" || c["csi.storage.k8s.io/ephemeral"] != "true" || c["csi.storage.k8s.io/serviceAccount.name"] != "sa" || !p.Readonly || p.Secrets["k"] != "v" {
			t.Errorf("%+v", p)
		}
		if (c[tokens] == "for vault") == inSecrets || (p.Secrets[tokens] == "for vault") != inSecrets {
			t.Errorf("tokens in secrets: %v; %v %v", inSecrets, c, p.Secrets)
		}
		if m.driver.count("publish") != 2 || m.driver.count("stage") != 0 || len(m.mounts()) != 1 {
			t.Error(m.driver.calls, m.mounts())
		}
		m.end("a")
	}
}

func TestAVolumeThatMustBeAttachedWaitsForThat(t *testing.T) {
	m := newMachine(t) // without a CSIDriver, volumes are attached
	reported := false
	m.inUse = func(v1.UniqueVolumeName) bool { return reported }
	m.serve()
	m.start()
	ctx := t.Context()
	if _, err := m.node.Publish(ctx, request("a")); err == nil || !strings.Contains(err.Error(), "volumesInUse") {
		t.Fatal(err)
	}
	if used, err := m.node.InUse(); err != nil || len(used) != 1 || used[0] != "kubernetes.io/csi/fake.csi.test^handle/1" {
		t.Error(used, err)
	}
	reported = true
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachmentName("handle/1", testDriver, testNode)},
		Status: storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "no such disk"}}}
	if _, err := m.client.StorageV1().VolumeAttachments().Create(ctx, va, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.node.Publish(ctx, request("a")); err == nil || !strings.Contains(err.Error(), "no such disk") {
		t.Fatal(err)
	}
	va.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"device": "/dev/x"}}
	if _, err := m.client.StorageV1().VolumeAttachments().UpdateStatus(ctx, va, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.node.Publish(ctx, request("a")); err != nil {
		t.Fatal(err)
	}
	if p := m.driver.published; p.PublishContext["device"] != "/dev/x" || p.VolumeCapability.GetMount().MountFlags[0] != "noatime" || p.VolumeContext["a"] != "b" {
		t.Errorf("%+v", p)
	}
	m.end("a")
	if used, err := m.node.InUse(); err != nil || len(used) != 0 {
		t.Error(used, err)
	}
}

func TestFilesAreGivenToTheGroupOnceAndAsTheDriverSays(t *testing.T) {
	group := int64(7)
	policy := func(p storagev1.FSGroupPolicy) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{FSGroupPolicy: &p}}
	}
	many := func(m *mount) { m.PV.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany} }
	for name, c := range map[string]struct {
		about  *storagev1.CSIDriver
		change func(*mount)
		want   bool
	}{
		"default, of one node":       {nil, func(*mount) {}, true},
		"default, of many":           {nil, many, false},
		"default, no file system":    {nil, func(m *mount) { m.source.FSType = "" }, false},
		"None":                       {policy(storagev1.NoneFSGroupPolicy), func(*mount) {}, false},
		"File, of many":              {policy(storagev1.FileFSGroupPolicy), many, true},
		"read-only":                  {policy(storagev1.FileFSGroupPolicy), func(m *mount) { m.ReadOnly = true }, false},
		"the driver does it":         {policy(storagev1.FileFSGroupPolicy), func(m *mount) { m.d.can[csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] = true }, false},
		"a device":                   {policy(storagev1.FileFSGroupPolicy), func(m *mount) { m.block = true }, false},
		"no group is asked for":      {policy(storagev1.FileFSGroupPolicy), func(m *mount) { m.Group = nil }, false},
		"ReadWriteOnceWithFSType":    {policy(storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy), func(*mount) {}, true},
		"ReadWriteOnce, given to us": {policy(storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy), many, false},
	} {
		m := &mount{Request: request("a"), d: &driver{can: map[nodeCapability]bool{}}, about: c.about}
		m.source, m.Group, m.Own = m.PV.Spec.CSI, &group, func(string) error { return nil }
		c.change(m)
		if m.ownsGroup() != c.want {
			t.Errorf("%s: %v", name, !c.want)
		}
	}

	m := newMachine(t, withoutAttaching())
	m.serve()
	m.start()
	owned := 0
	r := request("a")
	r.Group, r.Own = &group, func(string) error {
		if owned++; owned == 1 {
			return errFake // the agent ends in the middle of a large tree
		}
		return nil
	}
	if _, err := m.node.Publish(t.Context(), r); err == nil {
		t.Error("a volume that is not given to its group counts as ready")
	}
	m.restart()
	for range 2 {
		if _, err := m.node.Publish(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if owned != 2 || m.driver.count("publish") != 1 {
		t.Error(owned, m.driver.calls)
	}
	m.end("a")
}

func TestVolumesGrowAndTellHowFullTheyAre(t *testing.T) {
	secret := func(name string) *v1.Secret {
		return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "drivers", Name: name}, Data: map[string][]byte{"for": []byte(name)}}
	}
	m := newMachine(t, withoutAttaching(), secret("stage"), secret("expand"))
	m.serve()
	m.start()
	r := request("a")
	r.PV.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: "drivers", Name: "stage"}
	r.PV.Spec.CSI.NodeExpandSecretRef = &v1.SecretReference{Namespace: "drivers", Name: "expand"}
	got, err := m.node.Publish(t.Context(), r)
	if err != nil || !got.Expands || m.driver.secrets["for"] != "stage" {
		t.Fatal(got, err, m.driver.secrets)
	}
	if err := m.node.Expand(t.Context(), r, resource.MustParse("2Gi")); err != nil || m.driver.count("expand") != 1 || m.driver.secrets["for"] != "expand" {
		t.Error(err, m.driver.calls, m.driver.secrets)
	}
	u, ok, err := m.node.Usage(t.Context(), testPod("a"), "pv-1")
	if err != nil || !ok || u.Capacity != 100 || u.Used != 40 || u.Available != 60 || u.Inodes != -1 {
		t.Error(u, ok, err)
	}
	m.end("a")
}
