package authz_test

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"

	"github.com/balsahq/balsa/control/auth/authz"
	"github.com/balsahq/balsa/control/auth/bootstrap"
	"github.com/balsahq/balsa/control/auth/listers"
	"github.com/balsahq/balsa/raftstore"
)

type view struct{ *raftstore.View }

func (v view) Get(key string) ([]byte, int64, bool) {
	if kv := v.View.Get(key); kv != nil {
		return kv.Value, kv.ModRevision, true
	}
	return nil, 0, false
}

func (v view) Scan(prefix string, fn func(string, []byte, int64) bool) {
	v.Ascend(prefix, raftstore.PrefixEnd(prefix), func(kv *raftstore.KeyValue) bool { return fn(kv.Key, kv.Value, kv.ModRevision) })
}

// cluster is a store with the default policy, and an authorizer over it.
type cluster struct {
	*authz.Authorizers
	store *raftstore.Store
}

func newCluster(t testing.TB) cluster {
	t.Helper()
	s, err := raftstore.Open(raftstore.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	l, err := listers.New(listers.Config{Snapshot: func() listers.Snapshot { return view{s.View()} }})
	if err != nil {
		t.Fatal(err)
	}
	all, err := authz.New(authz.Config{Live: l})
	if err != nil {
		t.Fatal(err)
	}
	c := cluster{all, s}
	var ops []raftstore.Op
	policy := bootstrap.Default()
	for i := range policy.ClusterRoles {
		ops = append(ops, op(t, "clusterroles/"+policy.ClusterRoles[i].Name, &policy.ClusterRoles[i], "rbac.authorization.k8s.io/v1", "ClusterRole"))
	}
	for i := range policy.ClusterRoleBindings {
		ops = append(ops, op(t, "clusterrolebindings/"+policy.ClusterRoleBindings[i].Name, &policy.ClusterRoleBindings[i], "rbac.authorization.k8s.io/v1", "ClusterRoleBinding"))
	}
	c.write(t, ops...)
	return c
}

func op(t testing.TB, key string, obj runtime.Object, version, kind string) raftstore.Op {
	t.Helper()
	data, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	m["apiVersion"], m["kind"] = version, kind
	if data, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	return raftstore.Op{Type: raftstore.OpPut, Key: "/registry/" + key, Value: data}
}

func (c cluster) write(t testing.TB, ops ...raftstore.Op) {
	t.Helper()
	if _, err := c.store.Txn(t.Context(), raftstore.Txn{Success: ops}); err != nil {
		t.Fatal(err)
	}
}

func (c cluster) may(t testing.TB, a authorizer.AttributesRecord) bool {
	t.Helper()
	d, _, err := c.Authorizer.Authorize(t.Context(), &a)
	if err != nil {
		t.Fatal(err)
	}
	return d == authorizer.DecisionAllow
}

func ask(u user.Info, verb, resource, namespace, name string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{User: u, Verb: verb, Resource: resource, Namespace: namespace, Name: name, ResourceRequest: true, APIVersion: "v1"}
}

func TestRBACFollowsTheStore(t *testing.T) {
	c := newCluster(t)
	jane := &user.DefaultInfo{Name: "jane", Groups: []string{user.AllAuthenticated}}
	get := ask(jane, "get", "pods", "n", "p")
	if c.may(t, get) {
		t.Error("without a binding")
	}
	if !c.may(t, authorizer.AttributesRecord{User: jane, Verb: "get", Path: "/apis"}) {
		t.Error("discovery")
	}
	if !c.may(t, ask(&user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}, "delete", "nodes", "", "x")) {
		t.Error("system:masters")
	}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "b"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "jane"}}}
	c.write(t, op(t, "rolebindings/n/b", binding, "rbac.authorization.k8s.io/v1", "RoleBinding"))
	if !c.may(t, get) {
		t.Error("with the binding")
	}
	if c.may(t, ask(jane, "get", "pods", "other", "p")) || c.may(t, ask(jane, "get", "secrets", "n", "s")) {
		t.Error("more than the binding gives")
	}
	c.write(t, raftstore.Op{Type: raftstore.OpDelete, Key: "/registry/rolebindings/n/b"})
	if c.may(t, get) {
		t.Error("after the binding is gone")
	}
}

func TestNodeRules(t *testing.T) {
	c := newCluster(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"}, Spec: corev1.PodSpec{NodeName: "n1", ServiceAccountName: "sa",
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
		Volumes: []corev1.Volume{{Name: "c", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}},
			{Name: "m", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}}}}}}}}
	secret := func(name string) *corev1.SecretReference {
		return &corev1.SecretReference{Namespace: "drivers", Name: name}
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "n", Name: "claim", UID: "u"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h",
			NodeStageSecretRef: secret("stage"), NodePublishSecretRef: secret("publish"), NodeExpandSecretRef: secret("expand"), ControllerExpandSecretRef: secret("controller")}}}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "claim", UID: "u"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}}
	thief := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "thief", UID: "t"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}}
	thiefPod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "thief"}, Spec: corev1.PodSpec{NodeName: "n2",
		Volumes: []corev1.Volume{{Name: "c", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "thief"}}}}}}
	mirror := pod.DeepCopy()
	mirror.Name, mirror.Annotations = "mirror", map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	mirror.Spec.ImagePullSecrets[0].Name = "stolen"
	c.write(t, op(t, "pods/n/p", pod, "v1", "Pod"), op(t, "pods/n/mirror", mirror, "v1", "Pod"), op(t, "persistentvolumes/pv", pv, "v1", "PersistentVolume"),
		op(t, "persistentvolumeclaims/n/claim", claim, "v1", "PersistentVolumeClaim"), op(t, "persistentvolumeclaims/n/thief", thief, "v1", "PersistentVolumeClaim"), op(t, "pods/n/thief", thiefPod, "v1", "Pod"))
	n1 := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes", user.AllAuthenticated}}
	n2 := &user.DefaultInfo{Name: "system:node:n2", Groups: []string{"system:nodes", user.AllAuthenticated}}
	sub := func(a authorizer.AttributesRecord, s string) authorizer.AttributesRecord { a.Subresource = s; return a }
	in := func(a authorizer.AttributesRecord, g string) authorizer.AttributesRecord { a.APIGroup = g; return a }
	mine := func(a authorizer.AttributesRecord, node string) authorizer.AttributesRecord {
		reqs, err := fields.ParseSelector("spec.nodeName=" + node)
		if err != nil {
			t.Fatal(err)
		}
		a.FieldSelectorRequirements = reqs.Requirements()
		return a
	}
	for name, tc := range map[string]struct {
		ask  authorizer.AttributesRecord
		want bool
	}{
		"pull secret":                 {ask(n1, "get", "secrets", "n", "pull"), true},
		"pull secret of another":      {ask(n2, "get", "secrets", "n", "pull"), false},
		"watch one secret":            {ask(n1, "watch", "secrets", "n", "pull"), true},
		"secret by a mirror pod":      {ask(n1, "get", "secrets", "n", "stolen"), false},
		"secret elsewhere":            {ask(n1, "get", "secrets", "m", "pull"), false},
		"secret to stage a volume":    {ask(n1, "get", "secrets", "drivers", "stage"), true},
		"secret to publish a volume":  {ask(n1, "get", "secrets", "drivers", "publish"), true},
		"secret to expand a volume":   {ask(n1, "get", "secrets", "drivers", "expand"), true},
		"secret of the controller":    {ask(n1, "get", "secrets", "drivers", "controller"), false},
		"secret of another's volume":  {ask(n2, "get", "secrets", "drivers", "stage"), false},
		"write a secret":              {ask(n1, "update", "secrets", "n", "pull"), false},
		"projected config map":        {ask(n1, "get", "configmaps", "n", "cm"), true},
		"claim":                       {ask(n1, "get", "persistentvolumeclaims", "n", "claim"), true},
		"volume":                      {ask(n1, "get", "persistentvolumes", "", "pv"), true},
		"volume of another":           {ask(n2, "get", "persistentvolumes", "", "pv"), false},
		"token":                       {sub(ask(n1, "create", "serviceaccounts", "n", "sa"), "token"), true},
		"token of another":            {sub(ask(n2, "create", "serviceaccounts", "n", "sa"), "token"), false},
		"own pods":                    {mine(ask(n1, "list", "pods", "", ""), "n1"), true},
		"another's pods":              {mine(ask(n1, "list", "pods", "", ""), "n2"), false},
		"one own pod":                 {ask(n1, "get", "pods", "n", "p"), true},
		"one pod of another":          {ask(n2, "get", "pods", "n", "p"), false},
		"exec":                        {sub(ask(n1, "create", "pods", "n", "p"), "exec"), false},
		"pod status":                  {sub(ask(n1, "patch", "pods", "n", "p"), "status"), true},
		"own lease":                   {in(ask(n1, "update", "leases", "kube-node-lease", "n1"), "coordination.k8s.io"), true},
		"another's lease":             {in(ask(n1, "update", "leases", "kube-node-lease", "n2"), "coordination.k8s.io"), false},
		"lease elsewhere":             {in(ask(n1, "update", "leases", "kube-system", "n1"), "coordination.k8s.io"), false},
		"own node":                    {ask(n1, "get", "nodes", "", "n1"), true},
		"another node":                {ask(n1, "get", "nodes", "", "n2"), false},
		"own CSINode":                 {in(ask(n1, "get", "csinodes", "", "n1"), "storage.k8s.io"), true},
		"services":                    {ask(n1, "list", "services", "", ""), true},
		"events":                      {ask(n1, "create", "events", "n", ""), true},
		"deployments":                 {in(ask(n1, "list", "deployments", "", ""), "apps"), false},
		"a node without a name":       {ask(&user.DefaultInfo{Name: "system:node:", Groups: []string{"system:nodes"}}, "get", "nodes", "", "n1"), false},
		"somebody in system:nodes":    {ask(&user.DefaultInfo{Name: "jane", Groups: []string{"system:nodes"}}, "get", "nodes", "", "n1"), false},
		"a node without system:nodes": {ask(&user.DefaultInfo{Name: "system:node:n1"}, "get", "nodes", "", "n1"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.may(t, tc.ask); got != tc.want {
				t.Errorf("%s %s %s/%s by %s: %v, want %v", tc.ask.Verb, tc.ask.Resource, tc.ask.Namespace, tc.ask.Name, tc.ask.User.GetName(), got, tc.want)
			}
		})
	}
	moved := pod.DeepCopy()
	moved.Spec.NodeName = "n2"
	c.write(t, op(t, "pods/n/p", moved, "v1", "Pod"))
	if c.may(t, ask(n1, "get", "secrets", "n", "pull")) || !c.may(t, ask(n2, "get", "secrets", "n", "pull")) {
		t.Error("the pod's new version does not count at once")
	}
}

func BenchmarkControllerRequest(b *testing.B) {
	c := newCluster(b)
	a := ask(&user.DefaultInfo{Name: "system:serviceaccount:kube-system:deployment-controller",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", user.AllAuthenticated}}, "update", "deployments", "n", "d")
	a.APIGroup, a.Subresource = "apps", "status"
	if !c.may(b, a) {
		b.Fatal("denied")
	}
	b.ReportAllocs()
	for b.Loop() {
		c.may(b, a)
	}
}
