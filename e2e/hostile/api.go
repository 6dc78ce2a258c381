package main

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

var (
	dryCreate = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	dryPatch  = metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	dryDelete = metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
)

// apiAttacks are attacks on objects of the API.
func (w *world) apiAttacks() []attack {
	return append(append(w.readAttacks(), w.podAttacks()...), append(w.nodeAttacks(), w.serviceAttacks()...)...)
}

func (w *world) readAttacks() []attack {
	secret := func(c *kubernetes.Clientset, name string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := c.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
			return err
		}
	}
	configMap := func(c *kubernetes.Clientset, name string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := c.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
			return err
		}
	}
	secrets := func(c *kubernetes.Clientset, where string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := c.CoreV1().Secrets(where).List(ctx, metav1.ListOptions{})
			return err
		}
	}
	pod := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := w.evil.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
			return err
		}
	}
	pods := func(node string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := w.evil.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
			return err
		}
	}
	return []attack{
		{"secret of a pod on another node", secret(w.evil, "theirs"), secret(w.evil, "own")},
		{"secret with the identity that reads Services", secret(w.proxy, "own"), func(ctx context.Context) error {
			_, err := w.proxy.CoreV1().Services("").List(ctx, metav1.ListOptions{})
			return err
		}},
		{"all secrets of the cluster", secrets(w.evil, ""), secrets(w.admin, "")},
		{"all secrets of a namespace", secrets(w.evil, namespace), secrets(w.admin, namespace)},
		{"config map of a pod on another node", configMap(w.evil, "theirs"), configMap(w.evil, "own")},
		{"pod on another node", pod("theirs"), pod("own")},
		{"all pods of another node", pods(w.victim), pods(w.node)},
		{"another Node, read", func(ctx context.Context) error {
			_, err := w.evil.CoreV1().Nodes().Get(ctx, w.victim, metav1.GetOptions{})
			return err
		}, func(ctx context.Context) error {
			_, err := w.evil.CoreV1().Nodes().Get(ctx, w.node, metav1.GetOptions{})
			return err
		}},
	}
}

func (w *world) podAttacks() []attack {
	remove := func(name string) func(context.Context) error {
		return func(ctx context.Context) error { return w.evil.CoreV1().Pods(namespace).Delete(ctx, name, dryDelete) }
	}
	status := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := w.evil.CoreV1().Pods(namespace).Patch(ctx, name, types.MergePatchType, []byte(`{"status":{"message":"x"}}`), dryPatch, "status")
			return err
		}
	}
	evict := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			return w.evil.PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, DeleteOptions: &dryDelete})
		}
	}
	token := func(account string, bound *v1.Pod) func(context.Context) error {
		return func(ctx context.Context) error {
			request := &authenticationv1.TokenRequest{}
			if bound != nil {
				request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: bound.Name, UID: bound.UID}
			}
			_, err := w.evil.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
			return err
		}
	}
	mirror := func(node string, change func(*v1.Pod)) func(context.Context) error {
		return func(ctx context.Context) error { return w.mirror(ctx, node, change) }
	}
	good := mirror(w.node, func(*v1.Pod) {})
	return []attack{
		{"deletion of another node's pod", remove("theirs"), remove("own")},
		{"status of another node's pod", status("theirs"), status("own")},
		{"eviction of another node's pod", evict("theirs"), evict("own")},
		{"token for a pod of another node", token("theirs", w.theirs), token("own", w.own)},
		{"token for another's account, bound to its own pod", token("theirs", w.own), token("own", w.own)},
		{"token that is bound to nothing", token("own", nil), token("own", w.own)},
		{"mirror pod on another node", mirror(w.victim, func(*v1.Pod) {}), good},
		{"mirror pod with a service account", mirror(w.node, func(p *v1.Pod) { p.Spec.ServiceAccountName = "theirs" }), good},
		{"mirror pod with a secret", mirror(w.node, func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "s", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "theirs"}}}}
		}), good},
		{"mirror pod with a config map", mirror(w.node, func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "m", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "theirs"}}}}}
		}), good},
		{"pod that is no mirror", mirror(w.node, func(p *v1.Pod) { p.Annotations = nil }), good},
		{"pod bound onto its own node", func(ctx context.Context) error { return w.bind(ctx, w.evil, w.node) },
			func(ctx context.Context) error { return w.bind(ctx, w.admin, w.node) }},
		{"pod bound onto another node", func(ctx context.Context) error { return w.bind(ctx, w.evil, w.victim) },
			func(ctx context.Context) error { return w.bind(ctx, w.admin, w.victim) }},
	}
}

// mirror creates a mirror pod, as nodes do for their static pods.
func (w *world) mirror(ctx context.Context, node string, change func(*v1.Pod)) error {
	self, err := w.evil.CoreV1().Nodes().Get(ctx, w.node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("own Node: %v", err)
	}
	yes := true
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "mirror", Namespace: namespace, Annotations: map[string]string{v1.MirrorPodAnnotationKey: "x"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: self.Name, UID: self.UID, Controller: &yes}}},
		Spec: v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "a", Image: "balsahq/hello:1"}}}}
	change(pod)
	_, err = w.evil.CoreV1().Pods(namespace).Create(ctx, pod, dryCreate)
	return err
}

func (w *world) bind(ctx context.Context, as *kubernetes.Clientset, node string) error {
	return as.CoreV1().Pods(namespace).Bind(ctx, &v1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "pending", Namespace: namespace},
		Target: v1.ObjectReference{Kind: "Node", Name: node}}, dryCreate)
}

func (w *world) nodeAttacks() []attack {
	patch := func(as *kubernetes.Clientset, node, patch string, sub ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := as.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(patch), dryPatch, sub...)
			return err
		}
	}
	network := func(as *kubernetes.Clientset) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := as.CoreV1().Nodes().Patch(ctx, w.node, types.MergePatchType, []byte(`{"spec":{"podCIDR":"10.244.77.0/24","podCIDRs":["10.244.77.0/24"]}}`), dryPatch)
			return err
		}
	}
	address := func(ip string) func(context.Context) error {
		return patch(w.evil, w.node, `{"status":{"addresses":[{"type":"ExternalIP","address":"`+ip+`"}]}}`, "status")
	}
	free := address("192.0.2.123")
	api, _, _ := cutPort(w.server)
	lease := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := w.evil.CoordinationV1().Leases(v1.NamespaceNodeLease).Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"leaseDurationSeconds":1}}`), dryPatch)
			return err
		}
	}
	const label, restricted = `{"metadata":{"labels":{"example.com/x":"y"}}}`, `{"metadata":{"labels":{"node-restriction.kubernetes.io/x":"y"}}}`
	const taint = `{"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`
	const note = `{"metadata":{"annotations":{"balsa.dev/lans":"0.0.0.0/0"}}}`
	const silent = `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`
	ownLabel := patch(w.evil, w.node, label)
	return []attack{
		{"status of another Node", patch(w.evil, w.victim, silent, "status"), patch(w.evil, w.node, silent, "status")},
		{"label of another Node", patch(w.evil, w.victim, label), ownLabel},
		{"annotation of another Node", patch(w.evil, w.victim, note), ownLabel},
		{"taint of another Node", patch(w.evil, w.victim, taint), patch(w.admin, w.victim, taint)},
		{"taint of its own Node", patch(w.evil, w.node, taint), patch(w.admin, w.node, taint)},
		{"label that places pods by trust", patch(w.evil, w.node, restricted), ownLabel},
		{"pod network of its own choice", network(w.evil), ownLabel},
		{"address of another node in its own Node", address(w.victimAddress), free},
		{"address of the API in its own Node", address(api), free},
		{"address of a Service in its own Node", address("10.96.0.1"), free},
		{"lease of another node", lease(w.victim), lease(w.node)},
		{"deletion of another Node", func(ctx context.Context) error { return w.evil.CoreV1().Nodes().Delete(ctx, w.victim, dryDelete) },
			func(ctx context.Context) error { return w.admin.CoreV1().Nodes().Delete(ctx, w.victim, dryDelete) }},
		{"Node of another name", func(ctx context.Context) error {
			_, err := w.evil.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "invented"}}, dryCreate)
			return err
		}, func(ctx context.Context) error {
			_, err := w.admin.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "invented"}}, dryCreate)
			return err
		}},
	}
}

func (w *world) serviceAttacks() []attack {
	slice := func(as *kubernetes.Clientset) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := as.DiscoveryV1().EndpointSlices("default").Create(ctx, &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Name: "false", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
				AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{w.address}}}}, dryCreate)
			return err
		}
	}
	endpoints := func(as *kubernetes.Clientset) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := as.CoreV1().Endpoints("default").Patch(ctx, "kubernetes", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), dryPatch) //nolint:staticcheck // still there in every cluster
			return err
		}
	}
	external := func(as *kubernetes.Clientset) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := as.CoreV1().Services("default").Patch(ctx, "kubernetes", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), dryPatch)
			return err
		}
	}
	rights := func(as *kubernetes.Clientset) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := as.RbacV1().ClusterRoleBindings().Get(ctx, "cluster-admin", metav1.GetOptions{})
			return err
		}
	}
	return []attack{
		{"endpoints of the Service kubernetes, as a slice", slice(w.evil), slice(w.admin)},
		{"endpoints of the Service kubernetes, with the identity that reads Services", slice(w.proxy), slice(w.admin)},
		{"Endpoints object of the Service kubernetes", endpoints(w.evil), endpoints(w.admin)},
		{"a Service", external(w.evil), external(w.admin)},
		{"a Service, with the identity that reads Services", external(w.proxy), external(w.admin)},
		{"the cluster's roles", rights(w.evil), rights(w.admin)},
		{"impersonation of the administrator", func(ctx context.Context) error {
			return w.evil.CoreV1().RESTClient().Get().AbsPath("/api/v1/secrets").SetHeader("Impersonate-User", "kubernetes-admin").SetHeader("Impersonate-Group", "system:masters").Do(ctx).Error()
		}, func(ctx context.Context) error {
			return w.admin.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces").SetHeader("Impersonate-User", "jane").SetHeader("Impersonate-Group", "system:masters").Do(ctx).Error()
		}},
	}
}
